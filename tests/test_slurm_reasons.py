"""Why a job waits or died is said in words, with what a person can do."""

import pytest

from prorl_cli.slurm.reasons import NO_LAUNCH, explain, explain_pending
from prorl_cli.slurm.state import ENDED, JobState


def ended(state, reason="", code="", source="scontrol"):
    return explain(JobState(job_id=1, state=state, reason=reason, exit_code=code, source=source))


@pytest.mark.parametrize(
    ("reason", "what", "do"),
    [
        ("Resources", "busy", "starts by itself"),
        ("Priority", "ahead of it", "starts by itself"),
        ("PartitionTimeLimit", "never start", "cluster.time"),
        ("AssocGrpGRES", "limit is used up", "account"),
        ("AssocMaxJobsLimit", "limit is used up", "account"),
        ("QOSMaxJobsPerUserLimit", "QOS", "cluster.qos"),
        ("QOSGrpCpuLimit", "QOS", "cluster.qos"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu[1-2]", "down", "sinfo -R"),
        ("ReqNodeNotAvail, Reserved for maintenance", "maintenance", "cluster.time"),
        ("BeginTime", "two minutes", "wait"),
        ("DependencyNeverSatisfied", "never", "resume"),
        ("launch failed requeued held", "Slurm holds it", "release"),
        ("JobHeldUser", "you hold it", "release"),
        ("Licenses", "license", "starts by itself"),
        ("BadConstraints", "no node", "constraint"),
        ("None", "not looked", "wait"),
        ("", "not looked", "wait"),
        ("SomethingNewIn2031", "SomethingNewIn2031", "man squeue"),
    ],
)
def test_a_waiting_job(reason, what, do):
    said = explain_pending(reason)
    assert what in said.what and do in said.do


def test_every_end_that_slurm_knows_is_said():
    for state in ENDED:
        assert "Slurm says" not in ended(state).what and ended(state).do


def test_a_job_that_died_before_its_first_line_left_no_log_and_the_likely_cause_is_named():
    assert ended("FAILED", "JobLaunchFailure", "0:53") == NO_LAUNCH == ended("FAILED", code="0:53")
    assert "writable" in NO_LAUNCH.what


def test_an_exit_code_a_signal_a_component_and_the_run_s_own_words_are_told():
    assert "exit code 7" in ended("FAILED", "NonZeroExitCode", "7:0").what
    assert "signal 9" in ended("FAILED", code="0:9").what
    assert "component 2 is NODE_FAIL" in ended("CANCELLED", "component 2 is NODE_FAIL").what
    assert "a role kept dying" in ended("FAILED", "failed: a role kept dying", source="record").what
    assert "memory" in ended("OUT_OF_MEMORY").do


def test_a_job_that_drained_did_not_fail():
    for said in (
        ended("FAILED", "NonZeroExitCode", "3:0"),
        ended("FAILED", "stopped: the limit is near", source="record"),
    ):
        assert "stopped before" in said.what and "resume" in said.do
    assert "the limit is near" in said.what


def test_an_unknown_job_is_not_called_done():
    said = explain(JobState(job_id=1, state="UNKNOWN", reason="the queue does not hold it", source="nobody"))
    assert "does not know it" in said.what and "resume" in said.do


def test_a_state_of_a_later_slurm_is_quoted():
    assert "HIBERNATING" in explain(JobState(job_id=1, state="HIBERNATING", source="squeue")).what
