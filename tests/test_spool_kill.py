"""`kill -9` between every two system calls of append and of publish: what is visible is whole, and life goes on."""

import pytest

from prorl_cli import fsio
from prorl_cli.errors import Fenced, RunDirError
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader, LogWriter, scan
from prorl_cli.spool.members import claim_attempt, current_attempt
from prorl_cli.spool.requests import RequestFollower, RequestWriter, all_requests
from prorl_cli.spool.steps import last_position, publish_step, read_step
from prorl_cli.spool.weights import publish_weights, read_weights, verify_weights
from prorl_cli.trajectory import Drain, StepKind, StepManifest
from tests.killing import deaths

COMMITS = [(0, 1, 2), (3,), (4, 5, 6, 7)]


def body_of(number):
    return bytes([number]) * (50 + 40 * number)


def append_all(folder, tell):
    writer = LogWriter(folder, facts_size=1, roll_bytes=300)
    for numbers in COMMITS:
        for number in numbers:
            writer.append(body_of(number), bytes([number]))
        writer.commit()
        tell(numbers[-1])
    writer.close()


def read_all(folder):
    reader = LogReader(folder, 1)
    rows = reader.poll()
    for row in rows:
        assert reader.read(row) == body_of(row.seq)
    rest = reader.rest()
    for row in rest:
        assert reader.read(row) == body_of(row.seq)
    return [row.seq for row in rows], [row.seq for row in rest]


@pytest.mark.parametrize("torn", [False, True])
def test_a_writer_killed_before_any_call_leaves_whole_records_and_all_that_it_was_told_are_durable(tmp_path, torn):
    for k, told in deaths(lambda k, tell: append_all(tmp_path / str(k) / "log", tell), torn=torn):
        folder = tmp_path / str(k) / "log"
        committed, rest = read_all(folder)
        assert committed == list(range(len(committed))), f"call {k}"
        assert len(committed) >= (int(told[-1]) + 1 if told else 0), f"call {k}: a committed record is lost"
        assert committed + rest == list(range(len(committed + rest)))
        assert {finding.kind for finding in scan(folder, 1, writer_dead=True)} <= {"truncated"}
        assert {finding.kind for finding in scan(folder, 1, writer_dead=False)} <= {"incomplete", "truncated"}
        if folder.exists():
            with pytest.raises(RunDirError):
                LogWriter(folder, facts_size=1)
        append_all(folder.with_name("next"), lambda word: None)
        assert read_all(folder.with_name("next")) == (list(range(8)), [])
    assert k > 20
    assert committed == list(range(8))


def ask_all(run, worker):
    writer = RequestWriter(run, worker, "coordinator")
    for numbers in COMMITS:
        for number in numbers:
            writer.append(Drain(deadline_s=float(number), reason="test"))
        writer.commit()


@pytest.mark.parametrize("torn", [False, True])
def test_a_coordinator_killed_before_any_call_leaves_its_successor_no_request_that_the_worker_never_sees(
    tmp_path, torn
):
    run = RunDir(tmp_path / "run")
    run.create()
    for k, _ in deaths(lambda k, tell: ask_all(run, f"worker{k}"), torn=torn):
        seen = RequestFollower(run, f"worker{k}").poll()
        assert [request for worker, request in all_requests(run) if worker == f"worker{k}"] == seen, f"call {k}"
    assert len(seen) == 8


def publish_all(target, data, tell):
    fsio.publish(target, data)
    tell("published")


@pytest.mark.parametrize("torn", [False, True])
def test_publish_leaves_the_old_or_the_new_and_sweep_removes_the_rest(tmp_path, torn):
    target = tmp_path / "file"
    old, new = b"old" * 1000, b"new" * 2000
    for k, told in deaths(lambda k, tell: publish_all(target, new, tell), torn=torn):
        assert fsio.read(target) in ((new,) if told else (old, new, None)), f"call {k}"
        fsio.sweep(tmp_path, older_than_s=-1)
        assert fsio.names(tmp_path) in (["file"], [])
        fsio.publish(target, old)
        assert fsio.read(target) == old
    assert k > 6


@pytest.mark.parametrize("torn", [False, True])
def test_publish_exclusive_leaves_nothing_or_the_whole_and_another_can_take_over(tmp_path, torn):
    for k, told in deaths(lambda k, tell: tell(fsio.publish_exclusive(tmp_path / str(k), b"mine" * 999)), torn=torn):
        won_before = fsio.read(tmp_path / str(k)) == b"mine" * 999
        assert won_before or (fsio.read(tmp_path / str(k)) is None and not told)
        assert fsio.publish_exclusive(tmp_path / str(k), b"other") is not won_before
        fsio.sweep(tmp_path, older_than_s=-1)
        assert not [name for name in fsio.names(tmp_path) if name.startswith(".")]
    assert k > 6


def write_model(folder):
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x" * 5000)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    return {"weight": "00"}


def test_weights_killed_before_any_call_are_absent_or_complete_and_are_published_by_the_next_process(tmp_path):
    for k, told in deaths(lambda k, tell: tell(publish_weights(run_of(tmp_path, k), 3, write_model).version)):
        run = RunDir(tmp_path / str(k))
        found = read_weights(run, 3) if run.weights.exists() else None
        assert found or not told
        if found:
            assert verify_weights(found[0]) == []
        if run.weights.exists():
            publish_weights(run, 3, write_model)
            fsio.sweep(run.weights, older_than_s=-1)
            assert fsio.names(run.weights) == ["000003"]
            assert verify_weights(run.weight(3)) == []
    assert k > 30


def run_of(parent, k):
    run = RunDir(parent / str(k))
    fsio.make_folder(run.weights)
    return run


def test_a_step_killed_before_any_call_is_absent_or_whole(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()

    def manifest(position):
        return StepManifest(position=position, kind=StepKind.STEP, published_by="x" * 3000)

    for position, told in deaths(lambda k, tell: tell(publish_step(run, manifest(k)).position)):
        found = read_step(run, position)
        assert found == manifest(position) or (found is None and not told)
        again = StepManifest(position=position, kind=StepKind.RESTORE)
        assert publish_step(run, again) == (found or again)
        assert last_position(run) == position


def test_a_claim_killed_before_any_call_leaves_an_attempt_that_is_nobodys_or_whole(tmp_path):
    for k, told in deaths(lambda k, tell: tell(claim_attempt(RunDir(tmp_path / str(k)), {"who": "first"}))):
        run = RunDir(tmp_path / str(k))
        before = current_attempt(run)
        assert before in ((1,) if told else (0, 1))
        if run.jobs.exists():
            assert claim_attempt(run, {"who": "second"}) == before + 1
            with pytest.raises(Fenced):
                claim_attempt(run, {"who": "third"}, after=before)
