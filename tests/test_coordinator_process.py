"""The coordinator's process over real files: killed at any moment, doubled, fenced, drained, it keeps the step log."""

import os
import subprocess
import sys
import time

import pytest

from prorl_cli.metrics import read_rows
from prorl_cli.spool.evals import evaluations
from prorl_cli.spool.members import (
    StopOrder,
    claim_attempt,
    live,
    order_restore,
    order_stop,
    read_endpoints,
    read_obituaries,
)  # fmt: skip
from prorl_cli.spool.steps import publish_void
from prorl_cli.spool.weights import latest_weights
from prorl_cli.trajectory import StepKind, Void
from tests.coordinator_parts import Coordinators, Worker, dice, logs_of, manifests_of, outcome, train, until
from tests.coordinator_world import check_account
from tests.run_parts import REPOSITORY, make_run

ROLLOUT = {"group_size": 3, "groups_per_step": 2, "max_staleness": 1, "retries": 2, "run": {"slots": 9}}


def run_of(tmp_path, *, steps=4, evaluation=None, **rollout):
    run = make_run(tmp_path / "run", rollout=ROLLOUT | rollout, learner={"steps": steps}, eval=evaluation or {"n": 0})
    train(run)
    return run


@pytest.fixture
def coordinators(tmp_path):
    made = []

    def of(run):
        made.append(Coordinators(run))
        return made[-1]

    yield of
    for each in made:
        each.close()


def pump(run, workers):
    for worker in workers:
        worker.pump()
    train(run)


def check(run, steps):
    manifests = manifests_of(run)
    assert len(manifests) == steps
    logs = logs_of(run)
    check_account(manifests, logs)
    for manifest in manifests:
        for ref in manifest.records:
            assert logs[ref.writer][ref.seq].oldest >= manifest.position - 1 - ROLLOUT["max_staleness"]


def test_the_command_runs_to_the_last_step_with_evaluations_before_and_after(tmp_path):
    run = run_of(tmp_path, steps=2, evaluation={"n": 6})
    process = subprocess.Popen([sys.executable, "-m", "prorl_cli.coordinator", run.root], cwd=REPOSITORY)
    workers = [Worker(run, dice(0)), Worker(run, dice(1), node="m")]
    try:
        end = until(lambda: outcome(run), lambda: pump(run, workers))
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
    assert (end.state, end.step) == ("done", 2)
    check(run, 2)
    assert set(evaluations(run)) == {0, 2}
    assert [row["step"] for row in read_rows(run, "step_published")] == [1, 2]
    (endpoint,) = [e for e in read_endpoints(run) if e.role == "coordinator"]
    assert endpoint.state == "ended"
    assert endpoint.facts["finished"] + endpoint.facts["failed"] == sum(len(log) for log in logs_of(run).values())


def test_killed_at_any_moment_it_loses_nothing_and_uses_nothing_twice(tmp_path, coordinators):
    run = run_of(tmp_path, steps=16, evaluation={"n": 6, "every": 10})
    random = dice(7)
    workers = [Worker(run, random, pace=2), Worker(run, random, node="m", pace=2)]
    farm, kills = coordinators(run), 0
    process, kill_at = farm.start(), time.monotonic() + 0.3

    def act():
        nonlocal process, kill_at, kills
        for worker in workers:
            worker.pump()
        if kills == 24 or latest_weights(run) < kills * 16 / 24:  # the run cannot end before the last kill
            train(run)
        if time.monotonic() > kill_at and kills < 24:
            process.kill()
            process.join()
            kills += 1
            process, kill_at = farm.start(), time.monotonic() + random.uniform(0.02, 0.3)
            if kills % 6 == 0:
                workers.pop(0).die()
                workers.append(Worker(run, random, node=f"d{kills}", pace=2))

    end = until(lambda: outcome(run), act)
    assert (end.state, end.step) == ("done", 16)
    assert kills == 24
    check(run, 16)
    assert set(evaluations(run)) == {0, 10, 16}


def test_two_at_once_keep_one_consistent_step_log(tmp_path, coordinators):
    run = run_of(tmp_path, steps=8, evaluation={"n": 3})
    farm = coordinators(run)
    farm.start(), farm.start()
    workers = [Worker(run, dice(3)), Worker(run, dice(4), node="m")]
    end = until(lambda: outcome(run), lambda: pump(run, workers))
    assert (end.state, end.step) == ("done", 8)
    check(run, 8)


def test_a_dead_workers_request_log_is_closed(tmp_path, coordinators):
    run = run_of(tmp_path)
    process = coordinators(run).start()

    def open_for(worker):
        files = [
            os.path.realpath(f"/proc/{process.pid}/fd/{number}") for number in os.listdir(f"/proc/{process.pid}/fd")
        ]
        return [file for file in files if file.startswith(str(run.requests / worker.name))]

    first = Worker(run, dice(5), pace=0)
    until(lambda: first.running, first.pump)
    assert open_for(first)
    first.die()
    second = Worker(run, dice(6), pace=0)
    until(lambda: second.running, second.pump)
    assert open_for(second) and not open_for(first)


def test_an_older_attempt_is_fenced_and_exits_3(tmp_path, coordinators):
    run = run_of(tmp_path)
    process = coordinators(run).start()
    worker = Worker(run, dice(5), pace=0)
    until(lambda: worker.running, worker.pump)
    claim_attempt(run, {})
    until(lambda: process.exitcode is not None, worker.pump, timeout_s=10)
    assert process.exitcode == 3
    assert not manifests_of(run)


def test_a_new_attempt_uses_what_earlier_ones_finished_and_asks_again_for_the_rest(tmp_path, coordinators):
    run = run_of(tmp_path, steps=1)
    (run.trajectories / "notes.txt").write_text("a stray file stops nobody")
    farm = coordinators(run)
    first = farm.start()
    old = Worker(run, dice(6), pace=0)
    until(lambda: len(old.running) == 6, old.pump)
    for key in list(old.running)[:5]:
        old.write(key, reward=float(key[2] % 2))
    old.log.commit()
    first.kill()
    assert claim_attempt(run, {}) == 2
    run.resolved(2).write_bytes(run.resolved(1).read_bytes())
    farm.start()
    new = Worker(run, dice(6), attempt=2, errors=0.0)
    until(lambda: outcome(run, 2), lambda: pump(run, [new]))
    check(run, 1)
    writers = [ref.writer for ref in manifests_of(run)[0].records]
    assert writers.count(old.name) == 5
    assert writers.count(new.name) == 1


def test_a_drain_waits_for_what_runs_and_then_stops_resumable(tmp_path, coordinators):
    run = run_of(tmp_path, steps=50)
    process = coordinators(run).start()
    worker = Worker(run, dice(8), pace=1)
    until(lambda: manifests_of(run), lambda: pump(run, [worker]))
    order_stop(run, 1, StopOrder(mode="drain", deadline_s=30))
    end = until(lambda: outcome(run), lambda: pump(run, [worker]), timeout_s=20)
    process.join(timeout=10)
    assert end.state == "stopped"
    assert end.reason == "drained"
    assert not worker.running
    worker.pump()
    assert worker.draining
    check(run, end.step)


def test_a_drain_gives_up_at_its_deadline_and_now_stops_at_once(tmp_path, coordinators):
    for name, order, words in (
        ("drain", StopOrder(mode="drain", deadline_s=0.2), "deadline passed while waiting for drain: 9 members"),
        ("now", StopOrder(mode="now", deadline_s=0.0), "at once"),
    ):
        run = run_of(tmp_path / name)
        coordinators(run).start()
        stuck = Worker(run, dice(9), pace=0)
        until(lambda stuck=stuck: len(stuck.running) == 9, stuck.pump)
        order_stop(run, 1, order)
        end = until(lambda run=run: outcome(run), stuck.pump, timeout_s=10)
        assert end.state == "stopped"
        assert words in end.reason


def test_a_straggler_past_its_deadline_is_cancelled_and_dropped_as_late(tmp_path, coordinators):
    run = run_of(tmp_path, steps=1, groups_per_step=1, max_staleness=0, deadline="1.5s")
    coordinators(run).start()
    worker = Worker(run, dice(10), pace=0)
    until(lambda: len(worker.running) == 3, worker.pump)
    for key in list(worker.running)[:2]:
        worker.write(key, reward=float(key[2]))
    until(lambda: outcome(run), lambda: pump(run, [worker]))
    (manifest,) = manifests_of(run)
    assert [(d.group, d.reason, d.members) for d in manifest.dropped] == [(0, "late", (2,))]
    assert not worker.running


def test_a_restore_is_published_once_and_nothing_older_is_trained_on_afterwards(tmp_path, coordinators):
    run = run_of(tmp_path, steps=6)
    farm = coordinators(run)
    farm.start()
    first = Worker(run, dice(11), pace=2)
    until(lambda: len(manifests_of(run)) >= 3, lambda: pump(run, [first]))
    farm.close()
    before = len(manifests_of(run))
    claim_attempt(run, {})
    run.resolved(2).write_bytes(run.resolved(1).read_bytes())
    order_restore(run, 2, 1)
    second = Worker(run, dice(12), attempt=2, pace=2)
    for _ in range(2):
        restored = farm.start()
        until(lambda: len(manifests_of(run)) > before, lambda: pump(run, [second]))
        restored.kill()
        restored.join()
    farm.start()
    until(lambda: outcome(run, 2), lambda: pump(run, [second]))
    manifests = manifests_of(run)
    assert [m.position for m in manifests if m.kind == StepKind.RESTORE] == [before + 1]
    assert manifests[before].restore_to == 1
    logs = logs_of(run)
    for manifest in manifests[before + 1 :]:
        assert all(logs[ref.writer][ref.seq].oldest >= before + 1 for ref in manifest.records)
    check(run, 6)


def test_without_a_worker_it_waits_by_name(tmp_path, coordinators):
    run = run_of(tmp_path)
    coordinators(run).start()

    def waits():
        peers = live(read_endpoints(run), read_obituaries(run), 1)
        return [(e.waiting, e.waiting_s > 1) for e in peers if e.role == "coordinator"]

    until(lambda: waits() == [("a rollout worker", True)], lambda: None, timeout_s=10)


def test_a_damaged_manifest_is_passed_over_once_it_is_voided_and_refused_before(tmp_path, coordinators):
    run = run_of(tmp_path, steps=3)
    farm = coordinators(run)
    farm.start()
    worker = Worker(run, dice(13), pace=2)
    until(lambda: len(run.positions()) == 2, lambda: pump(run, [worker]))
    farm.close()
    data = run.step(2).read_bytes()
    run.step(2).write_bytes(data[:100] + b"x" + data[101:])
    refused = farm.start()
    refused.join(timeout=20)
    assert refused.exitcode == 1
    publish_void(run, Void(position=2, reason="its manifest is damaged"))
    farm.start()
    end = until(lambda: outcome(run), lambda: pump(run, [worker]))
    assert (end.state, end.step) == ("done", 3)
    assert run.positions() == [1, 2, 3]
