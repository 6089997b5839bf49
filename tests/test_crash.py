"""The night a node dies: real kills of every role, at random moments, and the run ends where it would have."""

import os
import random
import signal
import time

import pytest

from prorl_cli.rundir import RunDir
from tests.quick_run import is_process, live_roles, processes_of, prorl, start_prorl, status, until, write_recipe
from tests.run_ledger import check_ledger, leftovers

ROLES = ("coordinator", "router", "rollout", "engine", "learner")

KILLS = int(os.environ.get("PRORL_KILLS", "20"))
"""Kills of each role, and of `launch` itself."""


class Killer:
    """Kills seeded at random; counts what it killed."""

    def __init__(self, run, seed):
        self.run, self.random = run, random.Random(seed)
        self.killed = dict.fromkeys(ROLES, 0)

    def due(self):
        return [role for role in ROLES if self.killed[role] < KILLS]

    def strike(self):
        """Kill one process of a role that has not had its share, if one is there to kill."""
        due = self.due()
        peers = [peer for role, found in live_roles(self.run).items() if role in due for peer in found]
        if peers:
            self.kill(self.random.choice(peers))

    def strike_all(self):
        """Every role at one moment, `launch` apart."""
        for found in live_roles(self.run).values():
            for peer in found:
                self.kill(peer)

    def kill(self, peer):
        if is_process(peer.pid, peer.pid_started):
            os.kill(peer.pid, signal.SIGKILL)
            self.killed[peer.role] += 1


def wait_ready(run, launch):
    until(lambda: launch.poll() is not None or len(live_roles(run)) == len(ROLES), 60, "all roles up")


@pytest.mark.soak
def test_a_run_ends_at_its_step_through_kills_of_every_role_alone_and_of_all_at_once(tmp_path):
    recipe = write_recipe(tmp_path, steps=100000, workers=2)
    launch = start_prorl(tmp_path, "launch", recipe, "--run-dir", "run")
    run = until(lambda: (tmp_path / "run/provenance.json").exists() and RunDir(tmp_path / "run"), 60, "a run directory")
    wait_ready(run, launch)
    killer = Killer(run, seed=1)
    while killer.due():
        assert launch.poll() is None, (tmp_path / "prorl.log").read_text()
        done = len(run.positions())
        killer.strike()
        if killer.random.random() < 0.25:
            until(lambda: len(run.positions()) > done, 60, "a step between two kills")  # noqa: B023
        time.sleep(killer.random.uniform(0.0, 0.6))
    for _ in range(KILLS):
        wait_ready(run, launch)
        time.sleep(killer.random.uniform(0.0, 3.0))
        assert launch.poll() is None, (tmp_path / "prorl.log").read_text()
        killer.strike_all()
    assert min(killer.killed.values()) >= 2 * KILLS
    finish(tmp_path, run, launch)


@pytest.mark.soak
def test_a_run_goes_on_after_its_launch_and_with_it_every_role_is_killed_at_random_moments(tmp_path):
    recipe = write_recipe(tmp_path, steps=100000, workers=2)
    launch = start_prorl(tmp_path, "launch", recipe, "--run-dir", "run")
    run = until(lambda: (tmp_path / "run/resolved.1.json").exists() and RunDir(tmp_path / "run"), 60, "a run directory")
    moments = random.Random(2)
    for _ in range(KILLS):
        time.sleep(moments.uniform(0.5, 9.0))
        launch.send_signal(signal.SIGKILL)
        launch.wait()
        until(lambda: not processes_of(tmp_path), 10, "the end of every process of a killed launch")
        launch = start_prorl(tmp_path, "resume", "run")
    wait_ready(run, launch)
    finish(tmp_path, run, launch)


def finish(folder, run, launch):
    """Stop in order, resume with a last step a little ahead, and check the whole run."""
    until(lambda: len(run.positions()) > 3, 120, "some steps")
    launch.send_signal(signal.SIGINT)
    assert launch.wait(90) == 3, (folder / "prorl.log").read_text()
    final = max(run.positions()) + 5
    done = prorl(folder, "resume", "run", "--set", f"learner.steps={final}", timeout=180)
    assert done.returncode == 0, done.stderr + done.stdout
    picture = status(folder, "run")
    assert (picture["state"], picture["step"]) == ("done", final)
    check_ledger(run, final)
    assert not processes_of(folder)
    assert not leftovers(run)
