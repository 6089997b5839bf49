"""Every orderly way to stop a whole run on this machine, and to go on."""

import signal
import time

import pytest

from prorl_cli.rundir import RunDir
from tests.quick_run import live_roles, processes_of, prorl, start_prorl, status, until, write_recipe
from tests.run_ledger import check_ledger, leftovers


@pytest.fixture
def going(tmp_path):
    """A launch in the background that has published some steps; ended with the test."""
    recipe = write_recipe(tmp_path, steps=100000)
    launch = start_prorl(tmp_path, "launch", recipe, "--run-dir", "run")
    root = tmp_path / "run"
    try:
        until(
            lambda: (
                launch.poll() is not None or ((root / "spool/steps").is_dir() and len(RunDir(root).positions()) > 1)
            ),
            90,
            "two steps",
        )
        assert launch.poll() is None, (tmp_path / "prorl.log").read_text()
        yield launch
    finally:
        launch.kill()
        launch.wait()
        until(lambda: not processes_of(tmp_path), 10, "the end of its processes")


def test_one_interrupt_drains_a_resume_goes_on_and_stop_ends_it_from_another_shell(tmp_path, going):
    run = RunDir(tmp_path / "run")
    refused = prorl(tmp_path, "resume", "run")
    assert refused.returncode == 2 and "already running" in refused.stderr
    going.send_signal(signal.SIGINT)
    assert going.wait(80) == 3
    assert not processes_of(tmp_path)
    done = max(run.positions())
    check_ledger(run, done)
    assert status(tmp_path, "run")["state"] == "stopped"
    resumed = start_prorl(tmp_path, "resume", "run")
    until(lambda: resumed.poll() is not None or max(run.positions()) > done + 1, 90, "two steps more")
    assert live_roles(run)
    assert prorl(tmp_path, "stop", "run", "--now").returncode == 0
    assert resumed.wait(60) == 3
    assert "already ended" in prorl(tmp_path, "stop", "run").stdout
    check_ledger(run, max(run.positions()))


def test_two_interrupts_stop_at_once_and_of_two_resumes_at_once_one_wins_and_loses_nothing_finished(tmp_path, going):
    run = RunDir(tmp_path / "run")
    going.send_signal(signal.SIGINT)
    time.sleep(0.2)
    started = time.monotonic()
    going.send_signal(signal.SIGINT)
    assert going.wait(40) == 3
    assert time.monotonic() - started < 30
    assert not processes_of(tmp_path) and not leftovers(run)
    final = max(run.positions()) + 2
    both = [start_prorl(tmp_path, "resume", "run", "--set", f"learner.steps={final}") for _ in range(2)]
    codes = sorted(process.wait(120) for process in both)
    assert codes[0] == 0 and codes[1] in (2, 3)
    assert run.attempts() == [1, 2]
    log = (tmp_path / "prorl.log").read_text()
    assert "already running" in log or "has just claimed" in log
    check_ledger(run, final)
