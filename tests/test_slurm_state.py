"""What a job is doing, whoever still knows it; a job that is missing has not succeeded.

Answers of Slurm 22.05 as they were printed, and scripts in the place of its commands for what a real one cannot be made
to say; tests/cluster asks the real one.
"""

import time

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.slurm.answers import accounting_rows, base_state, job_records, queue_rows, seconds, settings, when
from prorl_cli.slurm.commands import ControllerDown, NotInstalled, Refused, slurm
from prorl_cli.slurm.environment import scrubbed
from prorl_cli.slurm.records import recorded
from prorl_cli.slurm.state import Recorded, job_state, job_states, with_estimate
from prorl_cli.slurm.submit import Job
from prorl_cli.spool.members import Endpoint, Outcome, claim_attempt, publish_outcome, write_endpoint

QUEUE = """\
1|1+0|RUNNING|None|cpu[1-2]|2026-11-30T15:47:23|9:56|cpu
2|1+1|RUNNING|None|gpu1|2026-11-30T15:47:23|8:00|gpu
3|1+2|TIMEOUT|TimeLimit|gpu2|2026-11-30T15:47:23|0:00|gpu
"""

RECORD = (
    "JobId={own} HetJobId=1 HetJobOffset={offset} JobName=a|b 'q' JobState=FAILED UserId=x(1) GroupId=y(2) JobState=FAILED "
    "HetJobIdSet=1-3 UserId=someone(1001) GroupId=some one(1001) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode={code} RunTime=00:00:04 TimeLimit=00:10:00 TimeMin=N/A SubmitTime=2026-11-30T15:47:22 "
    "StartTime=2026-11-30T15:47:23 EndTime=2026-11-30T15:57:23 Deadline=N/A Scheduler=Backfill Partition=cpu "
    "AllocNode:Sid=host:8648 ReqNodeList=(null) ExcNodeList=(null) NodeList=cpu[1-2] BatchHost=cpu1 NumNodes=2 "
    "WorkDir=/a b/JobState=PENDING Comment=JobState=PENDING  StdErr=/a b/x Power= \n"
)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Puts scripts in the place of Slurm's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(**bodies):
        for name, body in bodies.items():
            (folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (folder / name).chmod(0o700)

    for name in ("squeue", "scontrol", "sacct"):
        install(**{name: "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"})
    return install


def ask(job_id, own=None):
    return job_state(job_id, own, sleep=lambda _: None)


def test_the_queue_s_columns_are_read_and_noise_is_not():
    rows = queue_rows("some banner of the site\n" + QUEUE)
    assert [(row.job_id, row.leader, row.offset) for row in rows] == [(1, 1, 0), (2, 1, 1), (3, 1, 2)]
    assert rows[0].nodes == "cpu[1-2]" and rows[0].reason == "" and rows[0].time_left_s == 596.0
    assert rows[0].start == when("2026-11-30T15:47:23") is not None


def test_a_record_is_read_whatever_a_user_calls_things():
    (row,) = job_records(RECORD.format(own=2, offset=1, state="RUNNING", reason="None", code="0:0"))
    assert (row.job_id, row.leader, row.offset, row.state, row.nodes) == (2, 1, 1, "RUNNING", "cpu[1-2]")
    text = RECORD.format(own=2, offset=1, state="PENDING", reason="ReqNodeNotAvail, UnavailableNodes:gpu1", code="0:0")
    assert job_records(text)[0].reason == "ReqNodeNotAvail, UnavailableNodes:gpu1"


def test_accounts_are_read_with_their_components_and_long_states():
    rows = accounting_rows(
        "7|7+0|CANCELLED by 1000|0:15|2026-11-30T15:47:23|2026-11-30T15:48:23|cpu1\n8|7+1|NODE_FAIL|1:0|Unknown|Unknown|None assigned\n"
    )
    assert [(row.job_id, row.leader, row.state) for row in rows] == [(7, 7, "CANCELLED"), (8, 7, "NODE_FAIL")]
    assert rows[1].nodes == "" and rows[1].start is None
    assert base_state("CANCELLED+") == "CANCELLED" and base_state("") == "UNKNOWN"


@pytest.mark.parametrize("text", ["UNLIMITED", "INVALID", "NOT_SET", "N/A", "Partition_Limit", "infinite", ""])
def test_no_time_is_none_and_never_zero(text):
    assert seconds(text) is None


def test_settings_hold_values_with_signs_of_their_own():
    assert settings("SchedulerParameters     = bf_interval=1,x=2\nnonsense\n") == {
        "SchedulerParameters": "bf_interval=1,x=2"
    }


def test_a_component_that_ended_alone_is_named_and_the_least_time_left_counts(commands):
    commands(squeue=f"cat <<'END'\n{QUEUE}END")
    found = ask(1)
    assert (found.state, found.source, found.nodes) == ("RUNNING", "squeue", "cpu[1-2],gpu1,gpu2")
    assert found.reason == "component 2 is TIMEOUT" and found.time_left_s == 480.0 and not found.over


def test_the_controller_s_memory_tells_the_exit_code_that_the_queue_does_not(commands):
    commands(
        squeue="echo '1|1+0|FAILED|NonZeroExitCode|cpu1|2026-11-30T15:47:23|0:10|cpu'",
        scontrol=f"cat <<'END'\n{RECORD.format(own=1, offset=0, state='FAILED', reason='NonZeroExitCode', code='3:0')}END",
    )
    found = ask(1)
    assert (found.state, found.exit_code, found.source, found.over) == ("FAILED", "3:0", "scontrol", True)


def test_a_job_that_left_the_queue_is_looked_up_in_the_accounts(commands):
    commands(sacct="echo '1|1|TIMEOUT|0:15|2026-11-30T15:47:23|2026-11-30T15:48:23|cpu1'")
    found = ask(1)
    assert (found.state, found.source) == ("TIMEOUT", "sacct")


def test_accounts_that_still_say_running_are_not_believed_when_the_controller_knows_no_such_job(commands):
    commands(sacct="echo '1|1|RUNNING|0:0|2026-11-30T15:47:23|Unknown|cpu1'")
    assert ask(1).state == "UNKNOWN"


def test_without_accounts_the_run_s_own_record_tells_the_end_and_its_age(commands):
    commands(sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1")
    found = ask(1, Recorded(state="FAILED", reason="failed: a role kept dying", ended=time.time() - 100))
    assert (found.state, found.source) == ("FAILED", "record") and 99 < found.age_s < 110


def test_a_job_that_nobody_knows_is_unknown_with_its_age_and_never_done(commands):
    found = ask(1, Recorded(heard=time.time() - 50))
    assert (found.state, found.over, found.known, found.source) == ("UNKNOWN", False, False, "nobody")
    assert 49 < found.age_s < 60
    assert ask(1).age_s is None


def test_a_job_is_missing_only_when_it_was_missed_twice(commands, tmp_path):
    once = f"[ -e {tmp_path}/asked ] && echo '{QUEUE.splitlines()[0]}'; touch {tmp_path}/asked"
    commands(squeue=once)
    assert ask(1).state == "RUNNING"


def test_a_silent_controller_leaves_the_state_unknown_and_says_so(commands):
    commands(squeue="echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1")
    found = ask(1)
    assert found.state == "UNKNOWN" and "does not answer" in found.reason
    assert ask(1, Recorded(state="COMPLETED", ended=1.0)).state == "COMPLETED"


def test_many_jobs_are_asked_for_with_one_question(commands, tmp_path):
    commands(squeue=f"echo \"$@\" >>{tmp_path}/calls; cat <<'END'\n{QUEUE}END")
    found = job_states({1: Recorded(), 9: Recorded(state="COMPLETED", ended=1.0), 10: Recorded()})
    assert [found[job].state for job in (1, 9, 10)] == ["RUNNING", "COMPLETED", "UNKNOWN"]
    assert (tmp_path / "calls").read_text().count("\n") == 1
    assert job_states({}) == {}


def test_a_waiting_job_gets_slurm_s_estimate_where_there_is_one(commands):
    commands(squeue="echo '5|5|PENDING|Resources||2026-11-30T15:57:23|5:00|gpu'")
    assert with_estimate(ask(5)).start_estimate == when("2026-11-30T15:57:23")
    commands(squeue="echo '5|5|PENDING|Resources||N/A|5:00|gpu'")
    assert with_estimate(ask(5)).start_estimate is None


def test_the_user_s_formats_filters_and_language_are_not_heard(commands, monkeypatch):
    for name, value in {
        "SQUEUE_FORMAT": "%j", "SQUEUE_STATES": "CD", "SLURM_TIME_FORMAT": "relative", "SINFO_FORMAT": "%N",
        "SBATCH_PARTITION": "gpu", "SLURM_HET_SIZE": "3", "SLURM_CPU_BIND": "x", "SLURM_MEM_PER_CPU": "1",
        "SLURM_TRES_PER_TASK": "cpu:1", "SRUN_CPUS_PER_TASK": "2", "TMPDIR": "/nowhere", "LC_ALL": "de_DE",
        "SLURM_CONF": "/etc/x.conf", "HOME_TOWN": "kept",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    commands(squeue="env >&2; exit 1")
    with pytest.raises(Refused) as refused:
        slurm(["squeue"])
    kept = dict(entry.partition("=")[::2] for entry in refused.value.text.split("; "))
    assert {name for name in kept if name.startswith(("SLURM", "SBATCH", "SQUEUE", "SINFO", "SRUN"))} == {"SLURM_CONF"}
    assert kept["LC_ALL"] == "C.UTF-8" and kept["HOME_TOWN"] == "kept" and "TMPDIR" not in kept
    assert scrubbed({"PMIX_RANK": "0", "OMPI_X": "1", "PATH": "/bin"}) == {"PATH": "/bin", "LC_ALL": "C.UTF-8"}


def test_a_missing_command_a_silent_controller_and_a_refusal_are_told_apart(commands, monkeypatch):
    commands(squeue="sleep 30", scontrol="echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    commands(sinfo="echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1")
    with pytest.raises(ControllerDown, match="no answer"):
        slurm(["squeue"], timeout_s=0.2)
    with pytest.raises(ControllerDown, match="does not answer"):
        slurm(["scontrol"])
    with pytest.raises(NotInstalled, match="belongs to no cluster"):
        slurm(["sinfo"])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotInstalled, match="executor=local"):
        slurm(["squeue"])


def test_a_command_reads_nothing_of_our_input(commands):
    commands(squeue="cat")
    assert slurm(["squeue"], timeout_s=5) == ""


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    return run


def job(submitted_at=100.0):
    return Job(token="t", job_id=42, submitted_at=submitted_at)


def test_a_run_tells_the_end_of_a_job_by_the_outcome_of_its_attempt(run):
    attempt = claim_attempt(run, {"job_id": 42})
    publish_outcome(run, attempt, Outcome(state="stopped", reason="the time limit is near", step=3))
    found = recorded(run, job())
    assert (found.state, found.reason) == (
        "FAILED",
        "stopped: the time limit is near",
    ) and time.time() - found.ended < 60
    assert recorded(run, Job(token="u", job_id=43, submitted_at=1.0)).state == "", "another job of the same run"


def test_else_by_the_exit_code_of_its_script(run):
    run.submission("t").mkdir()
    run.batch_exit("t").write_text('{"code": 3, "job": 42, "restart": 0, "ended": 1000}\n')
    assert recorded(run, job()) == Recorded(
        state="FAILED", reason="its script ended with exit code 3", ended=1000.0, heard=1000.0
    )
    run.batch_exit("t").write_text('{"code": 0, "job": 42, "restart": 0, "ended": 1000}\n')
    assert recorded(run, job()).state == "COMPLETED"


def test_else_only_when_anything_was_last_heard_of_it(run):
    assert recorded(run, job()) == Recorded(heard=100.0)
    attempt = claim_attempt(run, {"job_id": 42})
    name = f"learner-n-{attempt}-00000000"
    write_endpoint(run, Endpoint(incarnation=name, role="learner", node="n", attempt=attempt, pid=1, pid_started=1.0))
    assert time.time() - recorded(run, job()).heard < 60
    run.submission("t").mkdir()
    run.batch_exit("t").write_text("torn")
    assert recorded(run, job()).state == ""
