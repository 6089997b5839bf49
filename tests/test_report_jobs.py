"""The picture of a run that is a Slurm job: queued, running, gone; advice from measured shares; doctor's findings."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from prorl_cli import fsio
from prorl_cli.report import read_brief, read_status
from prorl_cli.report.advice import Load, advise
from prorl_cli.report.doctor import cluster_findings
from prorl_cli.report.jobs import JobStatus, JobWatch, main_job, read_jobs
from prorl_cli.report.node import examine_node
from prorl_cli.report.probe import NAMES
from prorl_cli.report.screen import job_line, span
from prorl_cli.report.sharing import findings
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.facts import Facts
from prorl_cli.slurm.submit import Request, record_job, write_folder
from prorl_cli.spool.members import Outcome, claim_attempt, publish_outcome
from tests.test_slurm_preflight import CLUSTER, recipe


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.recipe.write_text("name: asked\n")
    return run


def submitted(run, token="t", job_id=42, satellite=None):
    write_folder(run, recipe(), Request(token=token, satellite=satellite))
    record_job(run, token, job_id)


def queue(*lines):
    return lambda words: "".join(f"{line}\n" for line in lines)


PENDING = "42|42+0|PENDING|Resources||2026-11-30T15:47:23|30:00|cpu"
RUNNING = "42|42+0|RUNNING|None|cpu[1-2]|2026-11-30T15:47:23|3:00:00|cpu"


def test_a_run_that_waits_in_the_queue_is_queued_and_needs_no_attempt(run):
    submitted(run)
    status = read_status(run, jobs=read_jobs([run], queue(PENDING))[0])
    assert (status.state, status.attempt, status.steps) == ("queued", 0, 100)
    assert "job 42" in status.reason and "busy" in status.reason
    assert status.job.state == "PENDING" and status.job.start_estimate is not None


def test_a_running_job_tells_its_time_left_and_nodes(run):
    submitted(run)
    (job,) = read_jobs([run], queue(RUNNING))[0]
    assert (job.id, job.time_left_s, job.source) == (42, 10800.0, "squeue")
    assert job_line(job) == "42 RUNNING, 3 h 00 min left, on cpu[1-2]"
    assert read_status(run, jobs=[job]).state == "starting"


def test_a_job_that_ended_before_its_first_word_is_a_dead_run(run):
    submitted(run)
    gone = "42|42|FAILED|JobLaunchFailure||2026-11-30T15:47:23|30:00|cpu"
    status = read_status(run, jobs=read_jobs([run], queue(gone))[0])
    assert status.state == "dead" and "writable" in status.reason and "prorl explain 42" in status.reason


def test_a_job_that_slurm_forgot_is_unknown_and_the_run_not_done(run):
    submitted(run)
    (job,) = read_jobs([run], queue())[0]
    assert job.state == "UNKNOWN" and job.source == "nobody" and job.age_s < 60
    assert read_status(run, jobs=[job]).state == "dead"


def test_a_done_run_stays_done_whatever_waits(run):
    submitted(run)
    attempt = claim_attempt(run, {"job_id": 41})
    fsio.publish(run.resolved(attempt), recipe().model_dump_json().encode())
    publish_outcome(run, attempt, Outcome(state="done", reason="all steps", step=100))
    assert read_brief(run, read_jobs([run], queue(PENDING))[0]).state == "done"


def test_the_job_that_runs_is_the_one_shown_and_satellites_never_are(run):
    def made(job, state, satellite=None):
        return JobStatus(id=job, state=state, reason="", words="", nodes="", time_left_s=None, start_estimate=None,
                         source="squeue", age_s=0.0, satellite=satellite)  # fmt: skip

    jobs = [made(1, "COMPLETED"), made(2, "RUNNING"), made(3, "PENDING"), made(4, "RUNNING", satellite=0)]
    assert main_job(jobs).id == 2
    assert main_job([jobs[0], jobs[2], jobs[3]]).id == 3
    assert main_job([jobs[0], jobs[3]]).id == 1
    assert main_job([]) is None


def test_no_command_is_started_for_a_run_without_jobs(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert JobWatch(run).look() == [] and read_jobs([]) == []


def test_the_controller_is_asked_once_for_all_runs(tmp_path):
    runs, asked = [], []
    for number in range(3):
        run = RunDir(tmp_path / f"run{number}")
        run.create()
        submitted(run, job_id=40 + number)
        runs.append(run)
    found = read_jobs(runs, lambda words: asked.append(words) or f"{RUNNING}\n")
    assert [jobs[0].state for jobs in found] == ["UNKNOWN", "UNKNOWN", "RUNNING"]
    assert len(asked) == 1 and asked[0][-1] == "40,41,42"


def test_spans_as_people_say_them():
    assert [span(s) for s in (7, 61, 7200, 86400 * 3)] == ["7 s", "1 min", "2 h 00 min", "3 days"]


def loads(rollout, engine, learner, up=1000.0, engines=2):
    return {"rollout": Load(4, rollout * 4 * up, 4 * up), "engine": Load(engines, engine * engines * up, engines * up),
            "learner": Load(1, learner * up, up)}  # fmt: skip


def test_a_busy_engine_that_others_wait_for_is_what_to_have_more_of():
    said = advise(loads(0.2, 0.95, 0.3), 1)
    assert "4 : 2 : 1" in said and "engine 95 %" in said
    assert "rollout and learner wait for engine: raise cluster.engine.nodes from 2 to 3" in said


def test_a_busy_learner_gets_more_gpus():
    assert "give it more GPUs" in advise(loads(0.2, 0.4, 0.95), 1)


def test_when_all_wait_for_each_other_the_loop_is_what_is_too_tight():
    assert "max_staleness" in advise(loads(0.2, 0.3, 0.3), 0)
    assert "groups_per_step" in advise(loads(0.2, 0.3, 0.3), 1)


def test_nothing_is_advised_too_early_or_when_nothing_is_to_be_won():
    assert advise(loads(0.2, 0.95, 0.3, up=10), 1) == ""
    assert advise(loads(0.7, 0.8, 0.7), 1) == ""
    assert advise({"engine": Load(1, 5.0, 1000.0)}, 1) == ""


def verdicts(facts):
    return {finding.name: finding for finding in cluster_findings(facts)}


def test_doctor_finds_what_matters_of_a_cluster():
    found = verdicts(replace(CLUSTER, settings={"SLURM_VERSION": "22.05.8", "SchedulerType": "sched/builtin", "EnforcePartLimits": "NO",
        "MinJobAge": "2 sec", "JobRequeue": "0", "JobSubmitPlugins": "lua", "AccountingStorageType": "accounting_storage/none"}))  # fmt: skip
    assert found["slurm"].verdict == "ok"
    assert found["SchedulerType"].verdict == "bad" and "single" in found["SchedulerType"].fix
    for name in ("EnforcePartLimits", "MinJobAge", "JobRequeue", "JobSubmitPlugins", "accounting"):
        assert found[name].verdict == "note" and found[name].fix
    assert "4×h100" in found["partition gpu"].value and "at most 2h" in found["partition gpu"].value


@pytest.mark.parametrize(
    ("version", "verdict"), [("24.11.2", "bad"), ("24.11.5", "ok"), ("19.05.8", "bad"), ("25.05.0-rc1", "ok")]
)
def test_doctor_knows_the_versions_that_break_heterogeneous_jobs(version, verdict):
    assert verdicts(Facts(partitions=(), nodes=(), settings={"SLURM_VERSION": version}))["slurm"].verdict == verdict


def test_doctor_tries_this_node_and_every_complaint_has_a_fix():
    found = examine_node()
    assert {"python", "user namespaces", "/dev/fuse", "apptainer", "sandbox.runtime: bwrap", "GPUs", "open files"} <= {
        f.name for f in found
    }
    assert all(finding.fix for finding in found if finding.verdict != "ok")
    assert msgspec.json.decode(msgspec.json.encode(found))


MEASURED = {"shared": True, "nodes": ["a", "b"], "reopen": [0.001, 0.002], "listing": [0.1, 31.0], "exists": [0.1, 0.1],
            "fsync": [0.02], "create": 0, "link": 3}  # fmt: skip


def test_what_two_nodes_measured_is_judged():
    found = {finding.name: finding for finding in findings(Path("/s"), MEASURED)}
    assert found["write → visible"].verdict == "ok" and found["new name → listed"].verdict == "note"
    assert found["exclusive create"].verdict == "ok"
    assert found["exclusive link"].verdict == "bad" and f"3 of {NAMES}" in found["exclusive link"].value
    (only,) = findings(Path("/s"), {"shared": False})
    assert only.verdict == "bad"
