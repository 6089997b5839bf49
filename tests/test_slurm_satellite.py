"""The batch step of a satellite as a real process: it keeps one worker at work through attempts, deaths and signals.

No Slurm is asked within the seconds that these tests take.
"""

import os
import signal
import subprocess
import sys

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attempt import begin
from prorl_cli.slurm.submit import Request, write_folder
from prorl_cli.spool.members import Outcome, StopOrder, order_stop, publish_outcome
from tests.quick_run import ROOT, until
from tests.test_slurm_chain import recipe

WORKER = """\
#!/bin/bash
echo "$$ $PRORL_SLOT" >> "$3/workers"
trap 'echo drained >> "$3/drained"; exit 0' USR2
while :; do sleep 0.05; done
"""


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    write_folder(run, recipe(), Request(token="abc", satellite=1))
    run.step_script("abc", "rollout").write_text(WORKER)
    return run


@pytest.fixture
def satellite(run):
    environment = {**os.environ, "SLURM_JOB_ID": "7", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "prorl_cli.slurm", str(run.root), "abc"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def workers(run):
    found = run.root / "workers"
    return [int(line.split()[0]) for line in found.read_text().splitlines()] if found.exists() else []


def started(run, count):
    until(lambda: len(workers(run)) == count, 30, f"worker number {count}")
    return workers(run)[-1]


def gone(pid):
    until(lambda: not os.path.exists(f"/proc/{pid}"), 20, "the end of the worker")  # noqa: PTH110


def test_a_satellite_joins_each_attempt_replaces_its_worker_and_leaves_when_the_run_is_done(run, satellite):
    begin(run, recipe())
    first = started(run, 1)
    assert run.log(1, "rollout-1").exists() and (run.root / "workers").read_text().endswith(" rollout-1\n")
    os.kill(first, signal.SIGKILL)
    second = started(run, 2)
    publish_outcome(run, 1, Outcome(state="stopped", reason="", step=0))
    gone(second)
    assert satellite.poll() is None
    begin(run, recipe())
    third = started(run, 3)
    publish_outcome(run, 2, Outcome(state="done", reason="", step=0))
    assert satellite.wait(30) == 0
    gone(third)


def test_a_satellite_leaves_when_the_user_stops_the_run(run, satellite):
    begin(run, recipe())
    worker = started(run, 1)
    order_stop(run, 1, StopOrder(mode="drain", deadline_s=1))
    publish_outcome(run, 1, Outcome(state="stopped", reason="drained", step=0))
    assert satellite.wait(30) == 0
    gone(worker)


def test_a_newer_attempt_is_followed_although_nobody_ended_the_older(run, satellite):
    begin(run, recipe())
    first = started(run, 1)
    begin(run, recipe())
    gone(first)
    started(run, 2)
    assert run.log(2, "rollout-1").exists()


def test_near_its_limit_a_satellite_lets_its_worker_finish_and_gives_the_node_back(run, satellite):
    begin(run, recipe())
    worker = started(run, 1)
    satellite.send_signal(signal.SIGUSR2)
    assert satellite.wait(30) == 0
    assert (run.root / "drained").exists()
    gone(worker)


def test_a_satellite_that_is_told_to_end_ends_at_once_and_takes_its_worker_along(run, satellite):
    begin(run, recipe())
    worker = started(run, 1)
    satellite.send_signal(signal.SIGTERM)
    assert satellite.wait(30) == 0
    gone(worker)


def test_a_killed_satellite_leaves_no_worker(run, satellite):
    begin(run, recipe())
    worker = started(run, 1)
    satellite.kill()
    gone(worker)
