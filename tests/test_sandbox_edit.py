"""The edit tool changes exactly the place it is told, atomically, and answers anything that is no text file in words."""

import os
import re
import socket
import stat
import time

import pytest

from prorl_cli.sandbox.boxed.editing import commands, session, texts
from prorl_cli.sandbox.boxed.tools.edit import open_session
from tests.box_driver import Driver


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def edit(home):
    with Driver(open_session, home) as driver:

        def command(name, path, **arguments):
            result = driver(command=name, path=str(path), **arguments)
            return result["outcome"], result["output"]

        command.session = driver.session
        yield command


def leftovers(folder):
    return [name for name in os.listdir(folder) if name.startswith(".prorl-")]


def test_a_file_is_viewed_with_its_line_numbers_and_in_part(edit, home):
    (home / "f").write_text("one\ntwo\nthree")
    assert edit("view", home / "f") == ("ok", "     1\tone\n     2\ttwo\n     3\tthree")
    assert edit("view", "f", view_range=[2, -1]) == ("ok", "     2\ttwo\n     3\tthree")
    assert edit("view", "f", view_range=[2, 99])[1] == "     2\ttwo\n     3\tthree"
    assert edit("view", "f", view_range=[1, 1])[1] == "     1\tone"
    (home / "f").write_text("")
    assert edit("view", "f") == ("ok", f"{home}/f is empty")


@pytest.mark.parametrize(
    ("lines", "words"),
    [([0, 2], "lines 1 to 3"), ([4, 5], "lines 1 to 3"), ([2, 1], "before it begins"), ([1], r"\[first, last\]"),
     (["1", 2], r"\[first, last\]"), ([1, True], r"\[first, last\]")],
)  # fmt: skip
def test_a_range_that_is_none_is_refused_in_words(edit, home, lines, words):
    (home / "f").write_text("one\ntwo\nthree\n")
    outcome, output = edit("view", "f", view_range=lines)
    assert outcome == "error"
    assert re.search(words, output)


def test_what_is_too_long_to_show_says_what_is_missing(edit, home):
    (home / "long").write_text("x" * 100_000 + "\n" + "line\n" * 100_000)
    outcome, output = edit("view", "long")
    assert outcome == "ok" and len(output) < commands.MAX_SHOWN + 200
    assert f"[… {100_000 - commands.MAX_LINE} characters omitted …]" in output
    assert output.endswith("to 100001 omitted; ask for them by view_range …]")


def test_a_folder_is_viewed_two_levels_deep_without_following_links(edit, home):
    (home / "a" / "b" / "c").mkdir(parents=True)
    (home / "a" / "f").write_text("")
    (home / ".hidden").write_text("")
    (home / "link").symlink_to("/")
    assert edit("view", home) == ("ok", f"{home}/\n  a/\n    b/\n    f\n  link -> /")
    (home / "many").mkdir()
    for number in range(commands.MAX_ENTRIES):
        (home / "many" / str(number)).write_text("")
    assert edit("view", home)[1].endswith("entries omitted …]")
    assert edit("view", home, view_range=[1, 2])[0] == "error"


def test_create_makes_folders_and_overwrites_what_can_be_undone(edit, home):
    assert edit("create", "x/y/f", file_text="one\n") == ("ok", f"{home}/x/y/f created: 1 line")
    assert (home / "x/y/f").read_text() == "one\n"
    assert edit("create", "x/y/f", file_text="1\n2") == ("ok", f"{home}/x/y/f overwritten: 2 lines")
    assert edit("undo_edit", "x/y/f")[0] == "ok" and (home / "x/y/f").read_text() == "one\n"
    assert "removed" in edit("undo_edit", "x/y/f")[1] and not (home / "x/y/f").exists()
    assert edit("undo_edit", "x/y/f") == ("error", f"error: there is no edit of {home}/x/y/f to undo")


def test_str_replace_changes_the_only_place_and_shows_it(edit, home):
    (home / "f").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    outcome, output = edit("str_replace", "f", old_str="line 10\nline 11\n", new_str="new\n")
    assert outcome == "ok"
    assert output.split("\n")[1:] == [f"{n:6}\t{t}" for n, t in enumerate(
        ["line 6", "line 7", "line 8", "line 9", "new", "line 12", "line 13", "line 14", "line 15"], 6)]  # fmt: skip
    assert edit("str_replace", "f", old_str="new\n")[0] == "ok"
    assert (home / "f").read_text().count("\n") == 18


def test_str_replace_refuses_what_is_nowhere_or_not_unique_and_says_where(edit, home):
    text = "def f():\n    return 1\n\ndef g():\n    return 1\n"
    (home / "f").write_text(text)
    assert "occurs 2 times" in (output := edit("str_replace", "f", old_str="return 1", new_str="")[1])
    assert "at lines 2, 5" in output
    assert "does not occur" in edit("str_replace", "f", old_str="return 2", new_str="")[1]
    assert (
        "with other spaces it does at line 4" in edit("str_replace", "f", old_str="def g():\n  return 1", new_str="")[1]
    )
    assert "is empty" in edit("str_replace", "f", old_str="", new_str="x")[1]
    assert "are the same" in edit("str_replace", "f", old_str="def g", new_str="def g")[1]
    (home / "aaa").write_text("aaa")
    assert "occurs 2 times" in edit("str_replace", "aaa", old_str="aa", new_str="b")[1]
    assert (home / "f").read_text() == text


def test_insert_puts_lines_where_it_is_told(edit, home):
    (home / "f").write_text("one\ntwo")
    assert edit("insert", "f", insert_line=0, insert_text="zero\n")[0] == "ok"
    assert edit("insert", "f", insert_line=2, insert_text="between")[0] == "ok"
    assert edit("insert", "f", insert_line=4, insert_text="last")[0] == "ok"
    assert (home / "f").read_text() == "zero\none\nbetween\ntwo\nlast\n"
    assert "from 0 to 5" in edit("insert", "f", insert_line=6, insert_text="x")[1]
    assert edit("insert", "f", insert_line=-1, insert_text="x")[0] == "error"


def test_undo_goes_back_edit_by_edit_of_each_file_whatever_else_was_called(edit, home):
    for name in ("a", "b"):
        (home / name).write_text("0\n")
    for step in range(1, 4):
        for name in ("a", "b"):
            edit("str_replace", name, old_str=f"{step - 1}\n", new_str=f"{step}\n")
    edit("view", "a")
    edit("str_replace", "a", old_str="nowhere", new_str="")
    assert edit("undo_edit", home / "." / "a")[0] == "ok"
    assert edit("undo_edit", "a")[0] == "ok"
    assert ((home / "a").read_text(), (home / "b").read_text()) == ("1\n", "3\n")
    assert edit("undo_edit", "a")[0] == "ok" and edit("undo_edit", "a")[0] == "error"
    assert (home / "a").read_text() == "0\n"


def test_an_edit_that_was_made_but_not_answered_in_time_can_be_undone(home):
    (home / "f").write_text("old\n")
    arguments = {"command": "str_replace", "path": "f", "old_str": "old", "new_str": "new"}
    with Driver(open_session, home) as driver:
        call = driver.session.call(arguments, time.monotonic() + 60)
        give_up = time.monotonic() + 30
        while (home / "f").read_text() != "new\n":
            assert time.monotonic() < give_up
            time.sleep(0.01)
        call.tick(time.monotonic())  # its answer has not been read
        assert call.result["outcome"] == "timeout"
        call.settle()
        assert driver(command="undo_edit", path="f")["outcome"] == "ok"
        assert (home / "f").read_text() == "old\n"
        assert driver(command="undo_edit", path="f")["outcome"] == "error", "there was one edit"


def test_an_edit_that_was_cut_off_before_it_was_made_is_none_to_undo(home, monkeypatch):
    def half_saved(before):
        os.pwrite(commands.SAVED, b"half of what it was", 1)
        (home / "begun").touch()
        time.sleep(600)

    monkeypatch.setattr(commands, "_save", half_saved)
    (home / "f").write_text("old\n")
    arguments = {"command": "create", "path": "f", "file_text": "new\n"}
    with Driver(open_session, home) as driver:
        call = driver.session.call(arguments, time.monotonic() + 600)
        give_up = time.monotonic() + 30
        while not (home / "begun").exists():
            assert time.monotonic() < give_up
            time.sleep(0.01)
        call.tick(time.monotonic() + 600)
        call.settle()
        assert driver(command="undo_edit", path="f")["outcome"] == "error"
    assert (home / "f").read_text() == "old\n"


def test_undos_are_bounded_in_bytes_and_in_number(edit, home, monkeypatch):
    monkeypatch.setattr(session, "MAX_KEPT", 10_000)
    monkeypatch.setattr(session, "MAX_UNDOS", 5)
    for _ in range(8):
        edit("create", "f", file_text="x" * 3000)
    assert [edit("undo_edit", "f")[0] for _ in range(4)] == ["ok", "ok", "ok", "error"]
    for number in range(8):
        edit("create", f"g{number}", file_text="")
    assert [edit("undo_edit", f"g{number}")[0] for number in range(8)] == ["error"] * 3 + ["ok"] * 5


def test_mode_links_and_line_ends_stay_what_they_were(edit, home):
    (home / "script").write_bytes(b"#!/bin/sh\r\necho 1\r\n")
    (home / "script").chmod(0o750)
    (home / "link").symlink_to("script")
    assert edit("str_replace", "link", old_str="sh\necho 1", new_str="sh\necho 2\necho 3")[0] == "ok"
    assert (home / "script").read_bytes() == b"#!/bin/sh\r\necho 2\r\necho 3\r\n"
    assert stat.S_IMODE((home / "script").stat().st_mode) == 0o750 and (home / "link").is_symlink()
    assert "\r" not in edit("view", "link")[1]
    (home / "mixed").write_bytes(b"a\r\nb\n")
    assert edit("str_replace", "mixed", old_str="b", new_str="c")[0] == "ok"
    assert (home / "mixed").read_bytes() == b"a\r\nc\n"
    assert leftovers(home) == []


def test_bytes_that_are_no_utf8_stay_as_they_are_around_an_edit(edit, home):
    (home / "latin").write_bytes(b"caf\xe9\nname\n")
    assert edit("str_replace", "latin", old_str="name", new_str="é\ud800")[0] == "ok"
    assert (home / "latin").read_bytes().startswith(b"caf")
    (home / "latin").write_bytes(b"caf\xe9\nname\n")
    assert edit("str_replace", "latin", old_str="name", new_str="é")[0] == "ok"
    assert (home / "latin").read_bytes() == b"caf\xe9\n\xc3\xa9\n"
    assert edit("view", "latin")[0] == "ok"
    assert edit("undo_edit", "latin")[0] == "ok" and (home / "latin").read_bytes() == b"caf\xe9\nname\n"


def test_what_is_no_text_file_is_refused_in_words_at_once(edit, home):
    os.mkfifo(home / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "socket"))
    (home / "binary").write_bytes(b"\x7fELF\0\1")
    (home / "huge").touch()
    os.truncate(home / "huge", 2**40)
    (home / "loop").symlink_to("loop")
    (home / "dangling").symlink_to("nowhere")
    words = {
        "fifo": "is a named pipe", "socket": "is a socket", "binary": "is binary", "huge": f"too large: {2**40} bytes",
        "/dev/zero": "is a device", "/dev/null": "is a device", "loop": "Too many levels", "dangling": "No such file",
        "missing": "No such file", "binary/x": "Not a directory", "n" * 300: "File name too long",
    }  # fmt: skip
    for path, said in words.items():
        for name, arguments in {
            "view": {}, "str_replace": {"old_str": "a", "new_str": "b"},
            "insert": {"insert_line": 0, "insert_text": "a"},
        }.items():  # fmt: skip
            began = time.monotonic()
            outcome, output = edit(name, path, **arguments)
            assert outcome == "error" and said in output, (name, path, output)
            assert time.monotonic() - began < 10
    for path in ("fifo", "/dev/null", "binary", "huge", home):
        assert edit("create", path, file_text="x")[0] == "error"
    assert (home / "binary").read_bytes() == b"\x7fELF\0\1"
    assert edit("str_replace", home, old_str="a", new_str="b")[1].endswith("is a folder, not a file")


def test_a_file_that_would_become_too_large_is_refused(edit, home):
    assert "too large" in edit("create", "f", file_text="x" * (texts.MAX_BYTES + 1))[1]
    assert not (home / "f").exists()
    assert edit("undo_edit", "f")[0] == "error"


def test_a_file_in_a_closed_folder_is_written_in_place_and_a_closed_file_is_not(edit, home):
    if os.geteuid() == 0:
        pytest.skip("nothing is closed to root")
    (home / "d").mkdir()
    (home / "d" / "f").write_text("old\n")
    (home / "d").chmod(0o500)
    assert edit("str_replace", "d/f", old_str="old", new_str="new")[0] == "ok"
    assert (home / "d" / "f").read_text() == "new\n"
    (home / "d" / "f").chmod(0o400)
    assert "not writable" in edit("str_replace", "d/f", old_str="new", new_str="x")[1]
    (home / "d").chmod(0o700)


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"command": "view"}, {"path": "f"}, {"command": 1, "path": "f"}, {"command": "view", "path": ""},
        {"command": "view", "path": "a\0b"}, {"command": "rm", "path": "f"}, {"command": "create", "path": "f"},
        {"command": "view", "path": "f", "old_str": "x"}, {"command": "insert", "path": "f", "insert_line": "1", "insert_text": "x"},
        {"command": "insert", "path": "f", "insert_line": True, "insert_text": "x"}, {"command": "create", "path": "f", "file_text": 3},
        {"command": "view", "path": "f", "view_range": "1-2"},
    ],
)  # fmt: skip
def test_other_arguments_are_refused_in_words(home, arguments):
    with Driver(open_session, home) as driver:
        result = driver(**arguments)
    assert result["outcome"] == "error" and result["output"].startswith("error: ")
    assert os.listdir(home) == []


def test_nulls_stand_for_arguments_left_out(edit, home):
    (home / "f").write_text("a\n")
    assert edit("view", "f", view_range=None, old_str=None)[0] == "ok"


def test_a_change_that_would_make_a_binary_file_is_refused_before_it_is_made(edit, home):
    (home / "a").write_text("one\n")
    for command, words in (
        ("create", {"file_text": "a\0b"}), ("insert", {"insert_line": 1, "insert_text": "\0"}),
        ("str_replace", {"old_str": "one", "new_str": "\0"}),
    ):  # fmt: skip
        outcome, output = edit(command, "a", **words)
        assert outcome == "error" and "binary" in output
        assert (home / "a").read_text() == "one\n"
