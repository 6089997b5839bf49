"""The plan as local processes: restarted within a budget, tied to their starter, none left when the run ends."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil
import pytest

from prorl_cli.errors import Fenced, Unfinished
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm import Plan, Process, Watch, plan_processes, supervise, supervisor
from prorl_cli.slurm.budget import WINDOW_S, RestartBudget
from prorl_cli.spool.members import StopOrder, claim_attempt, order_stop, read_obituaries, read_outcome

RECIPE = {
    "name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny"},
    "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
}  # fmt: skip

PRELUDE = """
import json, os, pathlib, signal, subprocess, sys, time
root = pathlib.Path(sys.argv[1])
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import Outcome, publish_outcome
run = RunDir(root)
def mark(name):
    with (root / name).open("a") as file:
        file.write(f"{os.getpid()}\\n")
    return len((root / name).read_text().splitlines())
def done():
    publish_outcome(run, 1, Outcome(state="done", reason="", step=3))
"""


@dataclass(frozen=True)
class Scripted(Process):
    """A role whose body is a piece of Python instead of a room."""

    body: str = ""

    def command(self, root):
        return [sys.executable, "-c", PRELUDE + self.body, str(root)]


def scripted(name, body):
    return Scripted(name=name, room=name.split("-")[0], body=body)


NOTHING = scripted("warmstart", "")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    run = RunDir(tmp_path / "run")
    run.create()
    claim_attempt(run, {})
    return run


def run_plan(run, *roles, prepare=NOTHING, restarts=5, watch=None):
    outcome = supervise(run, 1, Plan(prepare=prepare, roles=roles), restarts, watch or Watch())
    assert not [child for child in psutil.Process().children(recursive=True) if str(run.root) in child.cmdline()]
    return outcome


def pids(run, name):
    return [int(line) for line in (run.root / name).read_text().splitlines()]


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_recipe_plans_every_role_and_no_learner_without_steps():
    recipe = Recipe.model_validate_json(json.dumps({**RECIPE, "cluster": {"rollout": {"nodes": 2}}}))
    names = [role.name for role in plan_processes(recipe, has_weights=False).roles]
    assert names == ["coordinator-0", "router-0", "engine-0", "rollout-0", "rollout-1", "learner-0"]
    assert plan_processes(recipe, has_weights=False).prepare and not plan_processes(recipe, has_weights=True).prepare
    frozen = Recipe.model_validate_json(json.dumps({**RECIPE, "learner": {"steps": 0}}))
    assert "learner-0" not in [role.name for role in plan_processes(frozen, has_weights=True).roles]


def test_a_role_that_ends_is_started_again_until_the_outcome_is_there(run):
    role = scripted("rollout-0", "if mark('starts') == 3: done()\nelse: os.kill(os.getpid(), signal.SIGKILL)\n")
    assert run_plan(run, role).state == "done"
    assert len(pids(run, "starts")) == 3


def test_a_role_that_keeps_dying_fails_the_run_with_its_last_lines(run):
    outcome = run_plan(run, scripted("engine-0", "mark('starts'); print('no such device'); sys.exit(1)"), restarts=2)
    assert outcome.state == "failed"
    assert "engine-0 exited with code 1" in outcome.reason and "no such device" in outcome.reason
    assert len(pids(run, "starts")) == 3
    assert read_outcome(run, 1) == outcome


def test_bad_input_is_not_retried(run):
    outcome = run_plan(run, scripted("learner-0", "mark('starts'); sys.exit(2)"))
    assert outcome.state == "failed" and len(pids(run, "starts")) == 1


def test_a_role_fenced_by_a_newer_attempt_ends_this_one(run):
    with pytest.raises(Fenced):
        run_plan(run, scripted("learner-0", "sys.exit(3)"))
    assert read_outcome(run, 1) is None


def test_a_failed_preparation_ends_the_run_before_any_role_starts(run):
    outcome = run_plan(
        run, scripted("engine-0", "mark('starts')"), prepare=scripted("warmstart", "sys.exit('no model')")
    )
    assert outcome.state == "failed" and "no model" in outcome.reason
    assert not (run.root / "starts").exists()


def test_a_stop_during_preparation_stops_the_run(run):
    order_stop(run, 1, StopOrder(mode="now", deadline_s=0))
    assert run_plan(run, prepare=scripted("warmstart", "time.sleep(60)")).state == "stopped"


def test_a_stop_that_the_coordinator_never_finishes_is_finished_for_it(run, monkeypatch):
    monkeypatch.setattr(supervisor, "STOP_SLACK_S", 0.3)
    body = (
        "from prorl_cli.spool.members import StopOrder, order_stop\n"
        "order_stop(run, 1, StopOrder(mode='drain', deadline_s=0.1))\ntime.sleep(60)\n"
    )
    outcome = run_plan(run, scripted("coordinator-0", body))
    assert outcome.state == "stopped" and "did not finish" in outcome.reason


def test_nothing_is_left_of_roles_that_ignore_the_end_or_leave_orphans(run, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE_S", 0.5)
    orphan = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + orphan + "done()\ntime.sleep(600)\n"
    assert run_plan(run, scripted("engine-0", stubborn), scripted("rollout-0", orphan)).state == "done"


def test_temporary_files_of_killed_roles_are_swept_at_the_end(run):
    for folder in (run.root, run.steps, run.weights, run.job(1)):
        (folder / ".tmp-0123456789abcdef").write_text("half")
    (run.weights / ".tmp-fedcba9876543210").mkdir()
    run_plan(run, scripted("coordinator-0", "done()"))
    assert not list(run.root.rglob(".tmp-*"))


class Counting(Watch):
    """Ends the attempt when a role has ended twice."""

    def __init__(self):
        self.heard = []

    def tick(self, running):
        if len(self.heard) == 2:
            raise Unfinished("enough")

    def ended(self, child, restarted):
        self.heard.append((child.process.name, child.code, restarted))


def test_a_watch_hears_of_every_end_and_may_end_the_attempt(run):
    watch = Counting()
    with pytest.raises(Unfinished):
        run_plan(run, scripted("engine-0", "sys.exit(1)"), scripted("learner-0", "mark('pid'); time.sleep(600)"),
                 watch=watch)  # fmt: skip
    assert watch.heard == [("engine-0", 1, True)] * 2
    assert read_outcome(run, 1) is None and not alive(pids(run, "pid")[0])


def test_a_process_is_buried_by_its_slot_and_no_other(run):
    announce = (
        "from prorl_cli.spool.members import Endpoint, write_endpoint\n"
        "me = f'engine-here-1-{os.getpid():08x}'\n"
        "write_endpoint(run, Endpoint(incarnation=me, role='engine', node='here', attempt=1, pid=os.getpid(),"
        " pid_started=0.0, slot=os.environ['PRORL_SLOT'], step=7))\n"
    )
    first, second = announce + "mark('zero')\ntime.sleep(600)", announce + "mark('one')\nos.kill(os.getpid(), 9)"
    ender = "while not (root / 'zero').exists() or mark('looks') < 2: time.sleep(0.05)\ndone()"
    run_plan(run, scripted("engine-0", first), scripted("engine-1", second), scripted("coordinator-0", ender))
    found = {name: (one.code, one.step) for name, one in read_obituaries(run).items()}
    assert found[f"engine-here-1-{pids(run, 'zero')[0]:08x}"] == (-signal.SIGTERM, 7)
    assert found[f"engine-here-1-{pids(run, 'one')[0]:08x}"] == (-signal.SIGKILL, 7)


def test_a_killed_starter_takes_its_roles_with_it(run, tmp_path):
    script = tmp_path / "starter.py"
    script.write_text(
        "import sys\nfrom tests.test_slurm_local import NOTHING, Plan, Watch, scripted, supervise\n"
        "from prorl_cli.rundir import RunDir\nfrom pathlib import Path\n"
        "role = scripted('engine-0', \"mark('starts'); time.sleep(600)\")\n"
        "supervise(RunDir(Path(sys.argv[1])), 1, Plan(prepare=NOTHING, roles=(role,)), 5, Watch())\n"
    )
    starter = subprocess.Popen([sys.executable, str(script), str(run.root)])
    deadline = time.monotonic() + 20
    while not ((run.root / "starts").exists() and pids(run, "starts")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    while alive(pids(run, "starts")[0]):
        assert time.monotonic() < deadline, "the role outlived its starter"
        time.sleep(0.02)


def test_the_restart_budget_forgets_after_its_window():
    budget = RestartBudget(2)
    assert [budget.spend("a", now) for now in (0, 1, 2)] == [True, True, False]
    assert budget.spend("b", 2)
    assert budget.spend("a", WINDOW_S + 0.5)
    assert not budget.spend("a", WINDOW_S + 0.9)
