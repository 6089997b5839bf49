"""What a job queues, goes on with and gives up, decided from what the run directory says."""

import json

import pytest

from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.answers import Row
from prorl_cli.slurm.attempt import begin
from prorl_cli.slurm.chain import LIMIT, TOLD_TO_END, Past, crash_loop, over, past_attempts, split, successor
from prorl_cli.slurm.queued import missing_satellites, sort_out
from prorl_cli.slurm.submit import Job
from prorl_cli.spool.members import Outcome, StopOrder, order_stop, publish_outcome
from tests.test_slurm_step import RECIPE


def recipe(**changes):
    return Recipe.model_validate_json(json.dumps({**RECIPE, **changes}))


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    return run


def end(run, attempt, state, reason="", order=None):
    if order is not None:
        order_stop(run, attempt, StopOrder(mode="drain", deadline_s=1, reason=order))
    publish_outcome(run, attempt, Outcome(state=state, reason=reason, step=0))


def test_a_chain_is_as_long_as_the_recipe_says_and_its_tokens_are_known_in_advance():
    tokens = ["abc"]
    while (following := successor(tokens[-1], 2)) is not None:
        tokens.append(following)
    assert tokens == ["abc", "abc.1", "abc.2"]
    assert successor("abc", 0) is None and split("abc.2") == ("abc", 2)


def test_two_attempts_without_a_step_are_a_crash_loop_unless_somebody_else_ended_one():
    stuck, moved, cancelled = (Past(step=s, by_itself=b) for s, b in ((4, True), (2, True), (4, False)))
    assert crash_loop([moved, stuck, stuck], 4)
    assert not crash_loop([stuck, stuck], 5)
    assert not crash_loop([moved, stuck], 4)
    assert not crash_loop([stuck, cancelled], 4)
    assert not crash_loop([stuck], 4)


def test_what_ended_an_attempt_is_read_from_the_run(run):
    for _ in range(5):
        begin(run, recipe(), step=3)
    end(run, 2, "stopped", "drained", order=LIMIT)
    end(run, 3, "stopped", "drained", order="")
    end(run, 4, "stopped", TOLD_TO_END)
    end(run, 5, "failed")
    assert [past.by_itself for past in past_attempts(run)] == [True, True, False, False, True]
    assert {past.step for past in past_attempts(run)} == {3}


@pytest.mark.parametrize(
    ("state", "order", "goes_on"),
    [("stopped", LIMIT, True), ("stopped", None, True), ("stopped", "", False), ("failed", None, False),
     ("starved", None, False), ("done", None, False)],
)  # fmt: skip
def test_a_queued_job_goes_on_only_where_the_limit_or_slurm_ended_the_one_before(run, state, order, goes_on):
    begin(run, recipe())
    assert over(run, recipe()) is None
    end(run, 1, state, order=order)
    assert (over(run, recipe()) is None) == goes_on


def test_a_done_run_goes_on_when_more_is_asked_for(run):
    begin(run, recipe(learner={"steps": 5}))
    end(run, 1, "done")
    assert over(run, recipe(learner={"steps": 9})) is None


def test_an_attempt_begins_with_its_recipe_and_the_latest_logs(run):
    assert begin(run, recipe(), token="abc") == 1
    assert begin(run, recipe(), restore=0) == 2
    assert run.latest_logs.resolve() == run.logs / "2" and run.restore(2).exists() and not run.restore(1).exists()
    assert Recipe.model_validate_json(run.resolved(2).read_text()) == recipe()


def job(number, satellite=None):
    return Job(token=f"t{number}", job_id=number, submitted_at=number, satellite=satellite)


def test_a_heterogeneous_job_is_held_as_its_leader_is():
    rows = [
        Row(job_id=7, leader=7, state="RUNNING"),
        Row(job_id=8, leader=7, offset=1, state="COMPLETED"),
        Row(job_id=9, leader=9, state="CANCELLED"),
        Row(job_id=10, leader=10, state="PENDING", reason="Dependency"),
    ]
    found = sort_out([job(7), job(9), job(10), job(11)], rows)
    assert [(one.job.job_id, one.state, one.waits) for one in found] == [(7, "RUNNING", False), (10, "PENDING", True)]


def test_a_rollout_node_is_asked_for_again_when_no_job_of_its_number_is_left():
    rows = [Row(job_id=n, leader=n, state="RUNNING") for n in (1, 2, 4)]
    held = sort_out([job(1), job(2, 0), job(3, 1), job(4, 2)], rows)
    assert missing_satellites(4, held) == [1, 3]
