"""Publish, publish-exclusive, append and re-opening reads: whole or not at all, one winner, one writer."""

import errno
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from prorl_cli import fsio
from prorl_cli.errors import RunDirError
from prorl_cli.fsio import publishing
from tests.killing import fork, wait


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_publish_replaces_and_leaves_nothing_else(tmp_path):
    fsio.publish(tmp_path / "file", b"one")
    fsio.publish(tmp_path / "file", b"two", durable=False)
    assert contents(tmp_path) == {"file": b"two"}


def test_publish_makes_bytes_durable_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    made = []
    for name in ("write", "fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: made.append(name) or real(*args))
    fsio.publish(tmp_path / "file", b"data")
    assert made == ["write", "fsync", "rename", "fsync"]


def test_of_two_exclusive_publishers_the_first_stands(tmp_path):
    assert fsio.publish_exclusive(tmp_path / "file", b"first") is True
    assert fsio.publish_exclusive(tmp_path / "file", b"second") is False
    assert contents(tmp_path) == {"file": b"first"}


RACERS, ROUNDS = 6, 40


def race(folder, me, ready, gun):
    """One racer: publishes each name when the gun is fired, and leaves a list of those it won."""
    signal.alarm(60)
    won = []
    for number in range(ROUNDS):
        os.write(ready, b".")
        assert os.read(gun, 1)
        if fsio.publish_exclusive(folder / f"{number}", b"%d" % me * 5000):
            won.append(number)
        assert fsio.read(folder / f"{number}")
    (folder.parent / f"won-{me}").write_text(" ".join(map(str, won)))


def test_of_racing_processes_exactly_one_wins_each_name_and_all_agree(tmp_path):
    arena = tmp_path / "arena"
    arena.mkdir()
    (waiting, ready), guns = os.pipe(), [os.pipe() for _ in range(RACERS)]
    pids = [fork(lambda me=me: race(arena, me, ready, guns[me][0])) for me in range(RACERS)]
    os.close(ready)
    for number in range(ROUNDS):
        for _ in range(RACERS):
            assert os.read(waiting, 1)
        for me in range(RACERS):
            os.write(guns[(me + number) % RACERS][1], b"!")
    assert [wait(pid) for pid in pids] == [0] * RACERS
    for end in (waiting, *itertools.chain(*guns)):
        os.close(end)
    claims = [(int(n), me) for me in range(RACERS) for n in (tmp_path / f"won-{me}").read_text().split()]
    assert sorted(number for number, _ in claims) == list(range(ROUNDS))
    assert len({me for _, me in claims}) > 1, "nobody raced"
    assert contents(arena) == {f"{number}": b"%d" % me * 5000 for number, me in claims}


def test_a_link_whose_answer_was_lost_is_a_win(tmp_path, monkeypatch):
    """NFS repeats the request: the name that exists is our own."""
    real = os.link

    def twice(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert fsio.publish_exclusive(tmp_path / "file", b"mine") is True
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_rename_whose_answer_was_lost_is_done(tmp_path, monkeypatch):
    real = os.rename

    def twice(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(os, "rename", twice)
    fsio.publish(tmp_path / "file", b"mine")
    assert contents(tmp_path) == {"file": b"mine"}


def filled(parent, text):
    folder = fsio.temporary_folder(parent)
    (folder / "inner").mkdir()
    (folder / "inner" / "file").write_text(text)
    return folder


def test_a_folder_is_published_once_and_the_loser_is_removed(tmp_path):
    assert fsio.publish_folder(filled(tmp_path, "first"), tmp_path / "final") is True
    assert fsio.publish_folder(filled(tmp_path, "second"), tmp_path / "final") is False
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert (tmp_path / "final" / "inner" / "file").read_text() == "first"


def test_a_folder_that_loses_at_the_last_moment_is_removed_too(tmp_path, monkeypatch):
    fsio.publish_folder(filled(tmp_path, "first"), tmp_path / "final")
    monkeypatch.setattr(publishing, "names", lambda folder: [])
    assert fsio.publish_folder(filled(tmp_path, "second"), tmp_path / "final") is False
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_every_file_of_a_folder_is_durable_before_its_name(tmp_path, monkeypatch):
    made = []
    real = {name: getattr(os, name) for name in ("open", "fsync", "rename")}
    monkeypatch.setattr(os, "open", lambda p, *r: made.append(Path(p).name) or real["open"](p, *r))
    monkeypatch.setattr(os, "fsync", lambda fd: made.append("fsync") or real["fsync"](fd))
    monkeypatch.setattr(os, "rename", lambda *a: made.append("rename") or real["rename"](*a))
    folder = filled(tmp_path, "x")
    fsio.publish_folder(folder, tmp_path / "final")
    assert made == ["file", "fsync", "inner", "fsync", folder.name, "fsync", "rename", tmp_path.name, "fsync"]


def test_read_gives_all_bytes_or_none(tmp_path):
    assert fsio.read(tmp_path / "missing") is None
    assert fsio.read(tmp_path / "no" / "folder") is None
    (tmp_path / "file").write_bytes(b"x" * 300_000)
    assert fsio.read(tmp_path / "file") == b"x" * 300_000
    assert fsio.read(tmp_path / "file" / "below") is None
    assert fsio.names(tmp_path / "missing") == fsio.names(tmp_path / "file") == []


@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_a_stale_handle_is_opened_again(tmp_path, monkeypatch, call):
    (tmp_path / "file").write_bytes(b"data")
    real, left = getattr(os, call), [3]

    def stale(*args):
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(*args)

    monkeypatch.setattr(os, call, stale)
    assert fsio.read(tmp_path / "file") == b"data"


def test_a_handle_that_stays_stale_is_an_error_not_a_loop(tmp_path, monkeypatch):
    def stale(*args):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(OSError, match="Stale"):
        fsio.read(tmp_path / "file")


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    fsio.publish(tmp_path / "file", b"0123456789" * 3)
    assert fsio.read(tmp_path / "file") == b"0123456789" * 3


def test_an_append_file_has_one_writer(tmp_path):
    file = fsio.AppendFile(tmp_path / "file")
    with pytest.raises(FileExistsError):
        fsio.AppendFile(tmp_path / "file")
    file.append(b"abc")
    file.sync()
    file.close()
    file.close()
    assert (file.size, fsio.read(tmp_path / "file")) == (3, b"abc")


def test_make_folder_says_whether_it_was_there(tmp_path):
    assert fsio.make_folder(tmp_path / "a" / "b" / "c") is True
    assert fsio.make_folder(tmp_path / "a" / "b" / "c") is False


def test_sweep_removes_what_dead_writers_left_and_nothing_younger(tmp_path):
    old, young, deep = tmp_path / ".tmp-old", tmp_path / ".tmp-young", fsio.temporary_folder(tmp_path)
    for path in (old, young, tmp_path / "kept", deep / "shard"):
        path.write_bytes(b"x")
    hour_ago = time.time() - 3600
    for path in (old, tmp_path / "kept", deep):
        os.utime(path, (hour_ago, hour_ago))
    assert fsio.sweep(tmp_path, older_than_s=600) == [old]
    assert fsio.names(tmp_path) == sorted([young.name, deep.name, "kept"])
    os.utime(deep / "shard", (hour_ago, hour_ago))
    os.utime(deep, (hour_ago, hour_ago))
    assert fsio.sweep(tmp_path, older_than_s=600) == [deep]
    assert fsio.names(tmp_path) == [young.name, "kept"]


def test_sweep_of_a_missing_folder_is_nothing(tmp_path):
    assert fsio.sweep(tmp_path / "missing", older_than_s=0) == []


def test_remove_folder_takes_it_away_and_does_not_mind_its_absence(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x")
    fsio.remove_folder(tmp_path / "folder")
    fsio.remove_folder(tmp_path / "folder")
    assert fsio.names(tmp_path) == []


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "EPERM", "EMFILE", "EFBIG", "ENOENT"])
def test_each_refusal_names_the_path_and_a_remedy(tmp_path, monkeypatch, name):
    number = getattr(errno, name)

    def refuse(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(RunDirError) as caught:
        fsio.publish(tmp_path / "file", b"data")
    assert str(tmp_path / "file") in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert len(str(caught.value).split(": ")) >= 3, "no remedy"
    assert contents(tmp_path) == {}


def test_an_error_that_has_no_remedy_is_not_dressed_up(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError):
        fsio.publish(tmp_path / "file", b"data")
    assert fsio.names(tmp_path) == ["file"]


def test_a_text_written_in_turn_makes_one_name_for_ever_and_grows_when_it_must(tmp_path, monkeypatch):
    names = []
    for call in ("open", "rename", "unlink"):
        real = getattr(os, call)
        monkeypatch.setattr(os, call, lambda *args, real=real, call=call: names.append(call) or real(*args))
    fsio.write_turn(tmp_path / "file", b"0\n", 0)
    assert names == ["open", "open", "rename"]
    for turn in range(1, 6):
        fsio.write_turn(tmp_path / "file", b"%d\n" % turn, turn)
    assert names == ["open", "open", "rename"] + ["open"] * 5
    assert fsio.read_turns(tmp_path / "file") == [b"4\n", b"5\n"]
    long = b"6" * 3000 + b"\n"
    fsio.write_turn(tmp_path / "file", long, 6)
    fsio.write_turn(tmp_path / "file", b"7\n", 7)
    assert fsio.read_turns(tmp_path / "file") == [long, b"7\n"]
    assert fsio.read_turns(tmp_path / "none") is None


@pytest.mark.parametrize("turn", [1, 2])
def test_a_torn_turn_leaves_the_one_before_it_whole(tmp_path, turn):
    file = tmp_path / "file"
    for number in range(turn):
        fsio.write_turn(file, b"turn %d\n" % number, number)
    before = file.read_bytes()
    fsio.write_turn(file, b"turn %d\n" % turn, turn)
    after = file.read_bytes()
    changed = [at for at in range(len(after)) if after[at] != before[at]]
    for end in range(changed[0], changed[-1] + 1):
        file.write_bytes(after[:end] + before[end:])
        assert b"turn %d\n" % (turn - 1) in fsio.read_turns(file)
