"""The learner as a process: a poisonous step, stops, fencing, heartbeats, waits that have names."""

import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from prorl_cli.spool.members import claim_attempt
from prorl_cli.spool.steps import read_void
from prorl_cli.spool.weights import latest_weights, read_weights
from tests.learner_process import LearnerProcess, until
from tests.learner_run import Spool, make_run, recipe, tensors


@pytest.mark.soak
def test_a_step_that_kills_the_learner_every_time_is_voided_and_the_run_goes_on(tmp_path):
    run = make_run(tmp_path / "run", recipe(void_after=3))
    spool = Spool(run)
    spool.step()
    spool.step(groups=60)
    spool.step()
    deaths = 0
    while read_void(run, 2) is None:
        learner = LearnerProcess(run)
        until(lambda learner=learner: learner.endpoint and learner.endpoint.step == 2, "step 2", learner)
        end = time.monotonic() + 0.15
        while read_void(run, 2) is None and time.monotonic() < end:
            time.sleep(0.005)
        if read_void(run, 2) is None:
            assert latest_weights(run) == 1, "the poison must strike while step 2 trains"
            learner.kill()
            deaths += 1
            assert deaths <= 3
    assert read_void(run, 2).reason == "3 learners died on it"
    until(lambda: latest_weights(run) == 3, "weights 3", learner)
    assert learner.stop() == 0
    assert tensors(run, 2) == tensors(run, 1) != tensors(run, 3)
    before = tensors(run, 3)
    learner = LearnerProcess(run)
    until(
        lambda: learner.endpoint and learner.endpoint.waiting == "a manifest (step 4)", "the end of the replay", learner
    )
    assert learner.stop() == 0
    assert tensors(run, 3) == before, "the replay honours the void"


def test_a_stop_while_a_long_step_trains_ends_within_seconds_and_the_step_is_replayed(tmp_path):
    run = make_run(tmp_path / "run")
    spool = Spool(run)
    spool.step()
    spool.step(groups=600)
    learner = LearnerProcess(run)
    until(lambda: learner.endpoint and learner.endpoint.step == 2, "step 2", learner)
    started = time.monotonic()
    assert learner.stop(within=15) == 0
    assert time.monotonic() - started < 12
    if latest_weights(run) == 1:
        assert "was abandoned" in learner.log.read_text()
    assert run.checkpoint_steps() == [latest_weights(run)]


def test_the_heart_beats_while_a_step_trains(tmp_path):
    run = make_run(tmp_path / "run")
    Spool(run).step(groups=1000)
    learner = LearnerProcess(run)
    until(lambda: learner.endpoint and learner.endpoint.step == 1, "step 1", learner)
    beat = learner.endpoint.beat
    until(lambda: learner.endpoint.beat > beat, "another beat", learner, within=10)
    assert learner.endpoint.state == "training"
    assert latest_weights(run) == 0
    learner.kill()


def test_a_learner_of_an_older_attempt_ends_fenced_and_publishes_nothing_more(tmp_path):
    run = make_run(tmp_path / "run")
    spool = Spool(run)
    spool.step()
    learner = LearnerProcess(run)
    until(lambda: latest_weights(run) == 1, "weights 1", learner)
    claim_attempt(run, {})
    spool.step()
    assert learner.join(within=20) == 3
    assert latest_weights(run) == 1


def test_waiting_for_the_first_weights_has_a_name_and_ends_at_a_stop(tmp_path):
    run = make_run(tmp_path / "run")
    run.weight(0).rename(run.root / "later")
    learner = LearnerProcess(run)
    until(lambda: learner.endpoint and learner.endpoint.waiting == "weights 000000", "the named wait", learner)
    assert learner.stop() == 0


def test_python_dash_m_is_the_same_process(tmp_path):
    run = make_run(tmp_path / "run")
    Spool(run).step()
    process = subprocess.Popen([sys.executable, "-m", "prorl_cli.learner", str(run.root)], stderr=subprocess.PIPE)
    try:
        until(lambda: latest_weights(run) == 1 or process.poll() is not None, "weights 1")
        process.terminate()
        error = process.communicate(timeout=30)[1].decode()
    finally:
        process.kill()
    assert process.returncode == 0, error
    folder, _ = read_weights(run, 1)
    assert load_file(folder / "model.safetensors")
    assert "Traceback" not in error
