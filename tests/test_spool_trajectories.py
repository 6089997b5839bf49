"""Trajectory and request logs: facts in the entries, bodies on demand, damage counted and never fatal."""

import logging

import pytest

from prorl_cli.errors import CorruptRecord, RunDirError
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader
from prorl_cli.spool.requests import RequestFollower, RequestWriter, all_requests
from prorl_cli.spool.trajectories import (
    FACTS_SIZE,
    TrajectoryFollower,
    TrajectoryWriter,
    iterate_trajectories,
    read_trajectory,
)
from prorl_cli.trajectory import (
    Cancel,
    Drain,
    ErrorClass,
    GroupRequest,
    Purpose,
    RecordRef,
    Sequence,
    StopReason,
    TaskRef,
    VersionSpan,
)
from tests.spool_world import VOCAB, failed, new_run, sequence, trajectory


@pytest.fixture
def run(tmp_path):
    return new_run(tmp_path / "run")


def write(run, worker, *trajectories):
    writer = TrajectoryWriter(run, worker, VOCAB)
    for each in trajectories:
        writer.append(each)
    writer.commit()
    return writer


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_an_entry_carries_what_the_coordinator_decides_by(run):
    write(run, "one", trajectory(7, 3, tried=1, purpose=Purpose.EVAL))
    (entry,) = TrajectoryFollower(run).poll()
    assert (entry.writer, entry.seq, entry.group, entry.member, entry.tried, entry.task) == ("one", 0, 7, 3, 1, 2)
    assert (entry.tokens, entry.authored, entry.oldest, entry.newest) == (20, 7, 3, 5)
    assert (entry.purpose, entry.stop_reason, entry.error_class) == (Purpose.EVAL, StopReason.MAX_TURNS, None)
    assert (entry.reward, entry.seconds) == (1 / 3, 2.5)
    assert entry.ref == RecordRef(writer="one", seq=0, group=7, member=3)


def test_a_failure_keeps_its_class_and_has_no_versions(run):
    write(run, "one", failed(1, 2))
    (entry,) = TrajectoryFollower(run).poll()
    assert (entry.error_class, entry.stop_reason) == (ErrorClass.VERIFIER, StopReason.NONE)
    assert (entry.oldest, entry.newest, entry.authored) == (-1, -1, 0)


def test_every_stop_reason_error_class_and_purpose_survives_the_trip(run):
    made = [trajectory(n, stop_reason=reason) for n, reason in enumerate(StopReason)]
    made += [trajectory(100 + n, error_class=kind) for n, kind in enumerate(ErrorClass)]
    made += [trajectory(200 + n, purpose=kind) for n, kind in enumerate(Purpose)]
    write(run, "one", *made)
    entries = TrajectoryFollower(run).poll()
    facts = [(e.group, e.stop_reason, e.error_class, e.purpose) for e in entries]
    assert facts == [(t.group, t.stop_reason, t.error_class, t.purpose) for t in made]
    assert [read_trajectory(run, entry) for entry in entries] == made
    assert [read_trajectory(run, entry.ref) for entry in entries] == made
    assert list(iterate_trajectories(run)) == made


def test_a_follower_finds_new_workers_and_gives_each_entry_once(run):
    follower = TrajectoryFollower(run)
    assert follower.poll() == []
    one = write(run, "one", trajectory(0), trajectory(1))
    assert [(e.writer, e.seq) for e in follower.poll()] == [("one", 0), ("one", 1)]
    write(run, "two", trajectory(2))
    one.append(trajectory(3))
    assert [(e.writer, e.seq) for e in follower.poll()] == [("two", 0)]
    one.close()
    assert [(e.writer, e.seq, e.group) for e in follower.poll()] == [("one", 2, 3)]
    assert follower.poll() == []


BAD = {
    "lengths": {"token_ids": sequence().token_ids[:-4]},
    "an id outside the vocabulary": {"token_ids": Sequence.pack([VOCAB] * 8, [1] * 8, [0.0] * 8, []).token_ids},
    "a NaN logprob": {"logprobs": Sequence.pack([0] * 8, [1] * 8, [float("nan")] * 8, []).logprobs},
    "spans off the mask": {"spans": (VersionSpan(version=1, start=0, end=2),)},
}


@pytest.mark.parametrize("what", BAD)
def test_tokens_that_do_not_hold_together_are_refused_at_the_door(run, what):
    good = sequence()
    fields = {name: getattr(good, name) for name in good.__struct_fields__} | BAD[what]
    writer = TrajectoryWriter(run, "one", VOCAB)
    with pytest.raises(ValueError, match="train-0-0-0 may not be stored: sequence 0"):
        writer.append(trajectory(sequences=(Sequence(**fields),)))
    writer.close()
    assert TrajectoryFollower(run).poll() == []


def test_a_name_of_a_worker_is_used_once(run):
    write(run, "one").close()
    with pytest.raises(RunDirError, match="never resumed"):
        TrajectoryWriter(run, "one", VOCAB)


def test_a_flipped_body_is_corrupt_by_name_and_the_others_are_read(run, caplog):
    write(run, "one", trajectory(0), trajectory(1), trajectory(2)).close()
    entries = TrajectoryFollower(run).poll()
    flip(run.trajectory_log("one") / "000001.seg", entries[1].row.offset + 200)
    for ref in (entries[1], entries[1].ref):
        with pytest.raises(CorruptRecord, match=rf"000001.seg: offset {entries[1].row.offset}: corrupt"):
            read_trajectory(run, ref)
    assert len(TrajectoryFollower(run).poll()) == 3
    with caplog.at_level(logging.WARNING):
        assert [t.group for t in iterate_trajectories(run)] == [0, 2]
    assert "000001.seg" in caplog.text


def test_a_reference_to_another_members_record_is_not_believed(run):
    write(run, "one", trajectory(0, 0))
    with pytest.raises(CorruptRecord, match="is not member 1 of group 0"):
        read_trajectory(run, RecordRef(writer="one", seq=0, group=0, member=1))


def test_a_dead_workers_log_is_read_to_its_last_intact_record_and_then_no_more(run):
    write(run, "one", *(trajectory(n) for n in range(5))).close()
    index = run.trajectory_log("one") / "index"
    index.write_bytes(index.read_bytes()[:-200])
    follower = TrajectoryFollower(run)
    assert len(follower.poll()) < 5
    assert len(follower.poll()) == 0
    rest = follower.poll(dead={"one"})
    assert [entry.group for entry in rest][-1] == 4
    assert [read_trajectory(run, entry).group for entry in rest] == [entry.group for entry in rest]
    assert follower.poll(dead={"one"}) == follower.poll() == []


def test_what_damage_made_unreadable_is_counted(run):
    write(run, "one", *(trajectory(n) for n in range(3))).close()
    entries = TrajectoryFollower(run).poll()
    folder = run.trajectory_log("one")
    flip(folder / "000001.seg", entries[1].row.offset + 30)
    flip(folder / "index", 64 + (28 + FACTS_SIZE) + 20)
    follower = TrajectoryFollower(run)
    assert [entry.group for entry in follower.poll()] == [0, 2]
    assert follower.lost == 1


def test_a_stray_file_among_the_logs_stops_nobody(run):
    (run.trajectories / "notes.txt").write_text("mine")
    (run.requests / "notes.txt").write_text("mine")
    write(run, "one", trajectory(0))
    assert len(TrajectoryFollower(run).poll()) == len(list(iterate_trajectories(run))) == 1
    assert list(all_requests(run)) == []


def request(group):
    return GroupRequest(
        group=group,
        purpose=Purpose.TRAIN,
        task=TaskRef(task=0, domain="sums", index=group),
        members=(0, 1),
        tries=(0, 1),
        min_version=2,
        seed=5,
    )


CANCEL = Cancel(group=1, purpose=Purpose.TRAIN, members=(0,), reason="late")
DRAIN = Drain(deadline_s=3.0, reason="stop")


def ask(run, worker, coordinator, *requests):
    writer = RequestWriter(run, worker, coordinator)
    for each in requests:
        writer.append(each)
    writer.commit()
    return writer


def test_a_worker_reads_what_all_coordinators_address_to_it_in_order_and_once(run):
    follower = RequestFollower(run, "one")
    assert follower.poll() == []
    first = ask(run, "one", "b", request(0), request(1))
    ask(run, "two", "b", request(2))
    assert follower.poll() == [request(0), request(1)]
    ask(run, "one", "a", CANCEL)
    first.append(DRAIN)
    first.commit()
    assert follower.poll() == [DRAIN, CANCEL]
    assert follower.poll() == []
    assert sorted(worker for worker, _ in all_requests(run)) == ["one"] * 4 + ["two"]


def test_a_damaged_request_is_logged_and_left_out(run, caplog):
    ask(run, "one", "a", request(0), CANCEL, DRAIN).close()
    folder = run.request_log("one", "a")
    row = LogReader(folder, 0).poll()[1]
    flip(folder / "000001.seg", row.offset + 30)
    with caplog.at_level(logging.WARNING):
        assert RequestFollower(run, "one").poll() == [request(0), DRAIN]
    assert "000001.seg" in caplog.text
    assert [found for _, found in all_requests(run)] == [request(0), DRAIN]


def test_replays_and_divergence_reach_whoever_reads_only_the_index(run):
    made = [trajectory(0), trajectory(1, replays=2), trajectory(2, replays=300, diverged=True)]
    write(run, "worker-a-1-x", *made)
    entries = TrajectoryFollower(run).poll()
    assert [(e.replays, e.diverged) for e in entries] == [(0, False), (2, False), (127, True)]
    read = [read_trajectory(run, entry) for entry in entries]
    assert [(t.replays, t.diverged) for t in read] == [(0, False), (2, False), (300, True)]


def test_a_run_of_the_format_before_is_refused_in_words(run):
    run.provenance.write_text('{"format": 1}')
    with pytest.raises(RunDirError, match="layout 1, this one reads 2"):
        RunDir.open(run.root)
