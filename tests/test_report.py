"""One picture of a run from its directory alone: while it runs, after it ended, with half its roles dead."""

import io
import json
import time

import msgspec
import pytest
from rich.console import Console

from prorl_cli.errors import RunDirError
from prorl_cli.metrics import Recorder, read_rows
from prorl_cli.recipe import Recipe
from prorl_cli.report import Tally, read_status, render_live, render_summary, shown
from prorl_cli.report.chart import draw, shrink, sparkline
from prorl_cli.report.flow import throughput_curve
from prorl_cli.report.samples import Wanted, pick_samples, transcript
from prorl_cli.rundir import RunDir
from prorl_cli.spool.evals import Evaluation, publish_evaluation
from prorl_cli.spool.members import (
    Endpoint,
    Obituary,
    Outcome,
    StopOrder,
    claim_attempt,
    order_stop,
    publish_outcome,
    write_endpoint,
    write_obituary,
)
from prorl_cli.spool.trajectories import TrajectoryWriter
from prorl_cli.trajectory import ErrorClass, Purpose, Sequence, StopReason, TaskRef, Trajectory, VersionSpan

RECIPE = {
    "name": "pictured", "model": "builtin:tiny", "agent": {"renderer": "tiny"}, "learner": {"steps": 4},
    "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
}  # fmt: skip


def trajectory(group, member, reward, error=None):
    sequence = Sequence.pack([5, 6, 7, 8], [0, 0, 1, 1], [0, 0, -0.5, -0.25], [VersionSpan(version=0, start=2, end=4)])
    return Trajectory(
        group=group, member=member, tried=0, purpose=Purpose.TRAIN, task=TaskRef(task=0, domain="math", index=group),
        error="the engine is gone" if error else "", sequences=() if error else (sequence,), sampling={}, tool_calls=(), reward=0.0 if error else reward, reward_parts={},
        stop_reason=StopReason.NONE if error else StopReason.ANSWERED, error_class=error, worker="w",
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.recipe.write_text("name: pictured\n")
    claim_attempt(run, {})
    run.resolved(1).write_text(Recipe.model_validate_json(json.dumps(RECIPE)).model_dump_json())
    return run


def announce(run, role, nonce="0" * 8, **facts):
    name = f"{role}-node-1-{nonce}"
    given = {"state": "ready", "pid_started": 1.0, **facts}
    write_endpoint(run, Endpoint(incarnation=name, role=role, node="node", attempt=1, pid=1, **given))
    return name


def filled(run):
    writer = TrajectoryWriter(run, "rollout-node-1-00000000", 100)
    for group in range(3):
        for member in range(2):
            writer.append(trajectory(group, member, float(member)))
    writer.append(trajectory(3, 0, 0.0, ErrorClass.ENGINE))
    writer.close()
    learner = Recorder(run.metric("learner-node-1-00000000"))
    for step in (1, 2, 2):
        learner.add("step", step=step, reward=0.25 * step, step_s=2.0, entropy=0.5, kl=0.01)
    coordinator = Recorder(run.metric("coordinator-node-1-00000000"))
    for step in (1, 2, 2):
        coordinator.add("step_published", step=step, dropped={"zero_variance": 2})
    for version, score in ((0, 0.25), (4, 0.75)):
        publish_evaluation(
            run,
            Evaluation(
                version=version,
                n=256,
                passed=256 * score,
                pass_at_1=score,
                stderr=0.03,
                by_domain={"math": score},
                failed=0,
            ),
        )
    announce(run, "rollout", facts={"busy_s": 30.0, "up_s": 60.0})
    announce(run, "learner", waiting="a manifest", waiting_s=3.0, step=2, facts={"busy_s": 57.0, "up_s": 60.0})
    return run


def test_status_counts_what_the_spool_holds_and_what_was_announced(run):
    status = read_status(filled(run))
    assert status.state == "running"
    assert status.trajectories == {
        "finished": 6, "failed": {"engine": 1}, "dropped": {"zero_variance": 4}, "replayed": 0, "diverged": 0,
    }  # fmt: skip
    assert (status.throughput["trajectories_per_min"], status.throughput["tokens_per_s"]) == (6.0, 0.2)
    assert status.learner["step_s"] == 2.0 and status.learner["reward"] == 0.375
    assert status.reward_curve == [0.25, 0.5]
    assert status.bottleneck == "learner (busy 95 % of the time)"
    assert status.waits == ["learner waits for a manifest (3 s)"]
    assert (status.eval["before"].pass_at_1, status.eval["after"].pass_at_1, status.eval["after"].n) == (
        0.25,
        0.75,
        256,
    )


def test_status_as_json_has_the_documented_keys(run):
    status = json.loads(msgspec.json.encode(read_status(filled(run))))
    for key in ("state", "step", "steps", "waits", "roles"):
        assert key in status
    assert set(status["eval"]["before"]) >= {"pass_at_1", "stderr", "n"}
    assert set(status["trajectories"]) == {"finished", "failed", "dropped", "replayed", "diverged"}
    now = {"trajectories_per_min_now", "tokens_per_s_now"}
    assert set(status["throughput"]) == {"trajectories_per_min", "tokens_per_s", *now}
    assert set(status["learner"]) >= {"step_s", "reward", "entropy", "kl"}


def test_throughput_now_and_over_time_stages_and_domains_are_in_the_picture(run):
    filled(run)
    for nonce, finished in (("0" * 8, 30), ("1" * 8, 60)):
        rows = Recorder(run.metric(f"rollout-node-1-{nonce}"))
        rows.add("rollout", seconds=10.0, finished=1, authored=1)
        rows.add("rollout", seconds=10.0, finished=finished, authored=10 * finished)
        facts = {"finished": 10, "run_s": 20.0, "run_running": 3, "run_queued": 1, "up_s": 60.0}
        announce(run, "rollout", nonce=nonce, facts=facts)
    status = read_status(run)
    assert status.throughput["trajectories_per_min_now"] == 540.0 and status.throughput["tokens_per_s_now"] == 90.0
    assert (status.stages["run"].running, status.stages["run"].queued, status.stages["run"].seconds) == (6, 2, 2.0)
    math = status.domains["math"]
    assert (math.finished, math.reward, math.recent, math.failed) == (6, 0.5, None, {"engine": 1})


def test_throughput_over_time_is_a_value_a_step():
    rows = [{"step": n, "t": 10.0 * n, "settled": 5} for n in (1, 2, 3)]
    assert throughput_curve(rows, 4) == [120.0, 120.0] and throughput_curve([], 4) == []


def test_throughput_counts_from_the_first_worker_to_the_last_word_of_its_successor(run):
    filled(run)
    announce(run, "rollout", nonce="1" * 8, pid_started=121.0, facts={"busy_s": 1.0, "up_s": 60.0})
    assert read_status(run).throughput["trajectories_per_min"] == 2.0


def test_a_view_drawn_again_counts_only_what_is_new(run):
    tally = Tally(filled(run))
    assert read_status(run, tally) == read_status(run, tally)
    assert tally.finished == 6


def test_a_run_without_anything_yet_is_starting(run):
    status = read_status(run)
    assert (status.state, status.step, status.roles, status.reward_curve) == ("starting", 0, [], [])


def test_dead_roles_are_shown_dead_and_wait_for_nothing(run):
    name = announce(run, "engine", waiting="weights", waiting_s=9.0)
    write_obituary(run, Obituary(incarnation=name, code=-9, reason="killed by SIGKILL"))
    announce(run, "engine", nonce="1" * 8)
    status = read_status(run)
    assert sorted(role.state for role in status.roles) == ["dead", "ready"]
    assert status.waits == []


def test_a_run_whose_processes_fell_silent_is_dead_and_says_how_to_go_on(run, monkeypatch):
    announce(run, "coordinator")
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)
    status = read_status(run)
    assert status.state == "dead" and "prorl resume" in status.reason


def test_a_stop_order_and_an_outcome_are_the_state(run):
    order_stop(run, 1, StopOrder(mode="drain", deadline_s=5))
    assert read_status(run).state == "stopping"
    publish_outcome(run, 1, Outcome(state="starved", reason="all groups equal", step=2))
    assert (read_status(run).state, read_status(run).reason) == ("starved", "all groups equal")


def test_a_run_whose_launch_died_at_once_says_what_to_do(tmp_path):
    run = RunDir(tmp_path / "early")
    run.create()
    with pytest.raises(RunDirError, match="remove it and start again"):
        read_status(run)


def test_the_pictures_say_what_the_status_knows(run):
    status = read_status(filled(run))
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render_live(status))
    console.print(render_summary(status))
    text = console.export_text()
    for expected in (
        "pass@1 before training 0.250 ± 0.030", "pass@1 after training  0.750", "+0.500", "6 finished", "1 engine",
        "4 zero_variance", "2.00 s per step", "learner waits for a manifest", "prorl samples", "bottleneck", "first error   engine: the engine is gone",
    ):  # fmt: skip
        assert expected in text


def test_a_path_is_shown_as_one_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs" / "a b's") == "'runs/a b'\"'\"'s'"
    assert shown(tmp_path.parent) == str(tmp_path.parent)


def test_samples_are_chosen_by_reward_and_by_failure(run):
    filled(run)
    assert [t.reward for t in pick_samples(run, Wanted(order="worst", count=2))] == [0.0, 0.0]
    assert [t.reward for t in pick_samples(run, Wanted(order="best", count=1))] == [1.0]
    assert [t.error_class for t in pick_samples(run, Wanted(order="failed"))] == [ErrorClass.ENGINE]
    assert [(t.group, t.member) for t in pick_samples(run, Wanted(count=1))] == [(2, 1)]
    assert pick_samples(run, Wanted(step=9)) == []


def test_a_transcript_tells_the_policy_s_words_from_its_context():
    assert transcript(trajectory(0, 0, 1.0), str) == [("context", "[5, 6]"), ("policy", "[7, 8]")]


def test_a_torn_metrics_line_is_skipped(run):
    recorder = Recorder(run.metric("learner-node-1-00000000"))
    recorder.add("step", step=1)
    with run.metric("learner-node-1-00000000").open("a") as file:
        file.write('{"kind": "step", "t": 1.0, "st')
    assert [row["step"] for row in read_rows(run, "step")] == [1]
    recorder.add("step", step=2)
    recorder.add("step", step=3)
    assert [row["step"] for row in read_rows(run, "step")] == [1, 3], "a full disk tears in the middle"


def test_metrics_that_the_filesystem_refuses_are_reported_in_words(run):
    with pytest.raises(RunDirError, match="its folder is gone"):
        Recorder(run.root / "moved" / "learner.jsonl").add("step", step=1)


def test_a_chart_reaches_its_top_at_the_highest_value_and_keeps_its_width():
    lines = draw([0.0, 0.5, 1.0], width=10, height=4)
    assert lines[0].endswith("  █") and lines[3].endswith(" ██")
    assert len(draw([i / 500 for i in range(500)], width=60)[0]) == len("  1.00 ┤") + 60
    assert shrink([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert draw([]) == [] and sparkline([]) == ""
    assert sparkline([0.0, 1.0]) == "▁█"
