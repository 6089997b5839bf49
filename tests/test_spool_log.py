"""A log of one writer: what is committed is read once and whole; nothing is ever appended behind a torn tail."""

import os
from pathlib import Path

import pytest

from prorl_cli.errors import CorruptRecord, RunDirError
from prorl_cli.spool.log import LogReader, LogWriter, scan


def body_of(number):
    return bytes([number % 251]) * (number * 7 % 60)


def facts_of(number):
    return number.to_bytes(8, "little")


def write(folder, first, count, writer=None, roll_bytes=64 << 20):
    writer = writer or LogWriter(folder, facts_size=8, roll_bytes=roll_bytes)
    for number in range(first, first + count):
        assert writer.append(body_of(number), facts_of(number)) == number
    writer.commit()
    return writer


def numbers_of(rows):
    for row in rows:
        assert row.facts == facts_of(row.seq)
    return [row.seq for row in rows]


def test_rows_appear_at_commit_once_and_in_order(tmp_path):
    reader = LogReader(tmp_path / "log", 8)
    assert reader.poll() == []
    writer = write(tmp_path / "log", 0, 3)
    writer.append(body_of(3), facts_of(3))
    assert numbers_of(reader.poll()) == [0, 1, 2]
    assert reader.poll() == []
    writer.close()
    assert numbers_of(reader.poll()) == [3]
    assert list(scan(tmp_path / "log", 8, writer_dead=True)) == []


def test_every_body_comes_back_byte_for_byte_over_many_segments(tmp_path):
    writer = LogWriter(tmp_path / "log", facts_size=8, roll_bytes=400)
    for start in range(0, 60, 3):
        write(tmp_path / "log", start, 3, writer)
    reader = LogReader(tmp_path / "log", 8)
    rows = reader.poll()
    assert [reader.read(row) for row in rows] == [body_of(number) for number in range(60)]
    assert [reader.find(number) for number in range(60)] == [body_of(number) for number in range(60)]
    assert len(list((tmp_path / "log").glob("*.seg"))) > 5


def test_a_follower_far_behind_gets_bounded_chunks(tmp_path):
    writer = LogWriter(tmp_path / "log", facts_size=8)
    for number in range(20_000):
        writer.append(b"", facts_of(number))
    writer.commit()
    sizes = [len(rows) for rows in LogReader(tmp_path / "log", 8).chunks()]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 8192


def test_a_log_has_one_writer_for_ever(tmp_path):
    write(tmp_path / "log", 0, 1).close()
    with pytest.raises(RunDirError, match="already has a writer"):
        LogWriter(tmp_path / "log", facts_size=8)


def test_a_wrong_size_is_refused_at_the_door(tmp_path):
    writer = LogWriter(tmp_path / "log", facts_size=8)
    with pytest.raises(ValueError, match="3 bytes of facts"):
        writer.append(b"", b"abc")


def test_a_record_that_is_not_there_is_a_corrupt_record_that_names_the_log(tmp_path):
    write(tmp_path / "log", 0, 2)
    with pytest.raises(CorruptRecord, match=r"log.*record 5"):
        LogReader(tmp_path / "log", 8).find(5)


def test_bytes_of_another_log_never_pass(tmp_path):
    write(tmp_path / "one" / "log", 0, 3).close()
    write(tmp_path / "two" / "log", 0, 3).close()
    for name in ("000001.seg", "index"):
        (tmp_path / "one" / "log" / name).write_bytes((tmp_path / "two" / "log" / name).read_bytes())
    assert list(LogReader(tmp_path / "one" / "log", 8).everything()) == [[]]
    found = {finding.file.name: finding for finding in scan(tmp_path / "one" / "log", 8, writer_dead=True)}
    assert found.keys() == {"000001.seg", "index"}


def test_a_run_directory_may_be_moved(tmp_path):
    write(tmp_path / "run" / "trajectories" / "worker", 0, 3).close()
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert numbers_of(LogReader(tmp_path / "elsewhere" / "trajectories" / "worker", 8).poll()) == [0, 1, 2]


class Calls:
    """Notes what the writer asks of the operating system, by file name; fails one call when told to."""

    def __init__(self, monkeypatch, fail=None, keep=0):
        self.seen, self.paths, self.fail, self.keep = [], {}, fail, keep
        self.real = {name: getattr(os, name) for name in ("open", "write", "fsync", "fdatasync")}
        monkeypatch.setattr(os, "open", self.open)
        for name in ("write", "fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda fd, *rest, name=name: self.call(name, fd, *rest))

    def open(self, path, *rest, **kind):
        fd = self.real["open"](path, *rest, **kind)
        self.paths[fd] = Path(path).name
        return fd

    def call(self, name, fd, *rest):
        done = (name, self.paths[fd])
        self.seen.append(done)
        if done == self.fail:
            if rest:
                self.real["write"](fd, rest[0][: self.keep])
            raise OSError(28, "No space left on device")
        return self.real[name](fd, *rest)


def test_records_are_durable_before_their_entries_are_visible(tmp_path, monkeypatch):
    calls = Calls(monkeypatch)
    writer = write(tmp_path / "log", 0, 2)
    write(tmp_path / "log", 2, 2, writer)
    made = [call for call in calls.seen if call[1] != tmp_path.name]
    first = [("write", "000001.seg"), ("fdatasync", "000001.seg"), ("fsync", "log")]
    assert made[:6] == [*first, ("write", "index"), ("fdatasync", "index"), ("fsync", "log")]
    assert [call[1] for call in made[6:]] == ["000001.seg", "000001.seg", "index", "index"]


@pytest.mark.parametrize("keep", [0, 1, 20, 60, 100, 130])
@pytest.mark.parametrize("call", ["write", "fdatasync"])
@pytest.mark.parametrize("name", ["000001.seg", "index"])
def test_after_a_refusal_the_same_records_go_to_new_files_and_are_read_once(tmp_path, monkeypatch, name, call, keep):
    folder = tmp_path / "log"
    writer = write(folder, 0, 3)
    follower = LogReader(folder, 8)
    assert numbers_of(follower.poll()) == [0, 1, 2]
    with monkeypatch.context() as patch:
        Calls(patch, fail=(call, name), keep=keep)
        writer = LogWriter(tmp_path / "other", facts_size=8)
        with pytest.raises(RunDirError, match=r"other.*No space left on device.*free space"):
            write(tmp_path / "other", 0, 4, writer)
    early = LogReader(tmp_path / "other", 8)
    before = numbers_of(early.poll())
    write(tmp_path / "other", 4, 2, writer)
    assert before + numbers_of(early.poll()) == [0, 1, 2, 3, 4, 5]
    late = LogReader(tmp_path / "other", 8)
    assert [late.read(row) for row in late.poll()] == [body_of(number) for number in range(6)]
    assert [late.find(number) for number in range(6)] == [body_of(number) for number in range(6)]
    assert {found.kind for found in scan(tmp_path / "other", 8, writer_dead=False)} <= {"truncated"}
    assert late.lost == early.lost == 0


def test_a_damaged_entry_of_a_living_log_hides_neither_its_record_nor_later_ones(tmp_path):
    folder = tmp_path / "log"
    writer = write(folder, 0, 4)
    data = bytearray((folder / "index").read_bytes())
    data[-1] ^= 1
    (folder / "index").write_bytes(data)
    reader = LogReader(folder, 8)
    assert numbers_of(reader.poll()) == [0, 1, 2, 3]
    with open(folder / "index", "ab") as index:
        index.write(b"torn")
    assert reader.poll() == []
    writer.close()


def test_an_entry_still_on_its_way_is_waited_for(tmp_path):
    folder = tmp_path / "log"
    write(folder, 0, 4).close()
    whole = (folder / "index").read_bytes()
    entry = (len(whole) - 64) // 4
    segment = (folder / "000001.seg").read_bytes()
    reader = LogReader(folder, 8)
    (folder / "index").write_bytes(whole[:-entry] + bytes(entry))
    (folder / "000001.seg").write_bytes(segment[:-1])
    assert numbers_of(reader.poll()) == [0, 1, 2]
    assert [found.kind for found in scan(folder, 8, writer_dead=False)] == ["incomplete", "incomplete"]
    assert [found.kind for found in scan(folder, 8, writer_dead=True)] == ["truncated", "truncated"]
    (folder / "index").write_bytes(whole)
    (folder / "000001.seg").write_bytes(segment)
    assert numbers_of(reader.poll()) == [3]
    assert reader.lost == 0
