"""What the edit tool can do: view, create, str_replace, insert, undo_edit. Each answers in words.

Before a file changes, what it was is written to descriptor `SAVED`, its first byte last, so that what was not saved to
its end is told apart (`saved`). What an undo puts back comes from descriptor `UNDONE`. Called by `session`, in a child.
Refuses arguments that a command does not take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prorl_cli.sandbox.boxed.editing import texts
from prorl_cli.sandbox.boxed.tools import ToolError, refused

SAVED, UNDONE = 0, 1

MAX_SHOWN = 64 * 1024
"""Characters of one answer."""
MAX_LINE = 4096
"""Characters shown of one line."""
MAX_ENTRIES = 1000
"""Of a folder."""
AROUND = 4
"""Lines shown before and after an edit."""

_ABSENT, _PRESENT = b"-", b"+"
_MODE = 4


def run(arguments: dict[str, Any]) -> str:
    """One command; `path` is absolute by now."""
    name, path = arguments["command"], arguments["path"]
    if name not in COMMANDS:
        raise ToolError(f"command must be one of {', '.join(COMMANDS)}")
    command, needed, optional = COMMANDS[name]
    given = {key: value for key, value in arguments.items() if key not in ("command", "path") and value is not None}
    if missing := [key for key in needed if key not in given]:
        raise ToolError(f"{name} needs {', '.join(missing)}")
    if unknown := sorted(given.keys() - {*needed, *optional}):
        raise ToolError(f"{name} does not take {', '.join(unknown)}")
    for key, value in given.items():
        if not isinstance(value, _TYPES[key]) or isinstance(value, bool):
            raise ToolError(f"{key} must be {_WORDS[_TYPES[key]]}")
    return command(path, **given)


def view(path: str, view_range: Sequence[Any] | None = None) -> str:
    """A file with line numbers, or a folder two levels deep."""
    if Path(path).is_dir():
        if view_range is not None:
            raise ToolError(f"{path} is a folder: it has no lines")
        return _listing(path)
    lines = _lines(texts.read(path).text)
    if not lines and view_range is None:
        return f"{path} is empty"
    first, last = (1, len(lines)) if view_range is None else _range(view_range, len(lines))
    return _numbered(lines, first, last)


def create(path: str, file_text: str) -> str:
    """A new file, with the folders it needs, or new contents of an old one."""
    before = texts.read(path) if os.path.lexists(path) else None
    _save(before)
    with refused(path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    texts.replace(path, texts.encoded(file_text), before.mode if before else None)
    count = len(_lines(file_text))
    return f"{path} {'overwritten' if before else 'created'}: {count} line{'s' * (count != 1)}"


def str_replace(path: str, old_str: str, new_str: str = "") -> str:
    """Exactly one place of a file, anew."""
    before = texts.read(path)
    old, new = (text.replace("\r\n", "\n") if before.crlf else text for text in (old_str, new_str))
    if not old:
        raise ToolError("old_str is empty")
    if old == new:
        raise ToolError("old_str and new_str are the same")
    at = _only_place(before, old)
    _change(before, before.text[:at] + new + before.text[at + len(old) :])
    return _edited(path, at, new)


def insert(path: str, insert_line: int, insert_text: str) -> str:
    """Lines after line `insert_line`; 0 is the beginning."""
    before = texts.read(path)
    lines = _split(before.text)
    if not 0 <= insert_line <= len(lines):
        raise ToolError(f"insert_line must be from 0 to {len(lines)}, the number of lines of {path}")
    head, tail = "".join(lines[:insert_line]), "".join(lines[insert_line:])
    if head and not head.endswith("\n"):
        head += "\n"
    new = insert_text if insert_text.endswith("\n") or not (tail or head) else insert_text + "\n"
    _change(before, head + new + tail)
    return _edited(path, len(head), new)


def undo_edit(path: str) -> str:
    """Put back what a file was before its last edit by this tool."""
    with open(UNDONE, "rb", closefd=False) as memory:
        memory.seek(0)
        data = memory.read()
    if not data:
        raise ToolError(f"there is no edit of {path} to undo")
    if data[:1] == _ABSENT:
        with refused(path):
            Path(path).unlink(missing_ok=True)
        return f"{path} removed: the edit undone had created it"
    texts.replace(path, data[1 + _MODE :], int.from_bytes(data[1 : 1 + _MODE], "big"))
    return f"{path}: its last edit is undone"


COMMANDS: dict[str, tuple[Callable[..., str], tuple[str, ...], tuple[str, ...]]] = {
    "view": (view, (), ("view_range",)),
    "create": (create, ("file_text",), ()),
    "str_replace": (str_replace, ("old_str",), ("new_str",)),
    "insert": (insert, ("insert_line", "insert_text"), ()),
    "undo_edit": (undo_edit, (), ()),
}
"""With what each needs, and what it takes besides."""

_TYPES: dict[str, type] = {
    "file_text": str,
    "old_str": str,
    "new_str": str,
    "insert_text": str,
    "insert_line": int,
    "view_range": list,
}
_WORDS = {str: "a string", int: "a whole number", list: "a list of two line numbers"}


def _split(text: str) -> list[str]:
    """Lines as editors count them, with their ends: by line feed only."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\n") for line in _split(text)]


def _range(wanted: Sequence[Any], count: int) -> tuple[int, int]:
    if len(wanted) != 2 or not all(type(number) is int for number in wanted):
        raise ToolError("view_range must be [first, last]; last may be -1 for the end")
    first, last = wanted[0], count if wanted[1] == -1 else wanted[1]
    if not 1 <= first <= count:
        raise ToolError(f"view_range begins at {first}, but the file has lines 1 to {count}")
    if last < first:
        raise ToolError(f"view_range ends at {last}, before it begins")
    return first, min(last, count)


def _numbered(lines: Sequence[str], first: int, last: int) -> str:
    """Lines `first` to `last`, as many as fit."""
    shown: list[str] = []
    room = MAX_SHOWN
    for number in range(first, last + 1):
        line = lines[number - 1]
        if len(line) > MAX_LINE:
            line = f"{line[:MAX_LINE]} [… {len(line) - MAX_LINE} characters omitted …]"
        room -= len(line) + 8
        if room < 0:
            shown.append(f"[… lines {number} to {last} omitted; ask for them by view_range …]")
            break
        shown.append(f"{number:6}\t{line}")
    return "\n".join(shown)


def _listing(path: str) -> str:
    """Its visible entries and theirs."""
    entries: list[str] = []
    with refused(path):
        _list(path, "", 2, entries)
    if len(entries) > MAX_ENTRIES:
        entries = [*entries[:MAX_ENTRIES], f"[… {len(entries) - MAX_ENTRIES} entries omitted …]"]
    return "\n".join([f"{path.rstrip('/')}/", *entries])


def _list(folder: str, indent: str, levels: int, entries: list[str]) -> None:
    with os.scandir(folder) as found:
        visible = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    for entry in visible:
        inner = entry.is_dir(follow_symlinks=False)
        mark = "/" if inner else f" -> {Path(entry).readlink()}" if entry.is_symlink() else ""
        entries.append(f"{indent}  {entry.name}{mark}")
        if inner and levels > 1:
            _list_inner(entry.path, f"{indent}  ", levels - 1, entries)


def _list_inner(folder: str, indent: str, levels: int, entries: list[str]) -> None:
    try:
        _list(folder, indent, levels, entries)
    except OSError as error:
        entries.append(f"{indent}  [{error.strerror}]")


def _only_place(before: texts.Text, old: str) -> int:
    places = []
    at = before.text.find(old)
    while at >= 0:
        places.append(at)
        at = before.text.find(old, at + 1)
    if not places:
        raise ToolError(f"old_str does not occur in {before.path}{_near_miss(before.text, old)}")
    if len(places) > 1:
        lines = [str(before.text.count("\n", 0, place) + 1) for place in places[:20]]
        more = ", …" if len(places) > 20 else ""
        raise ToolError(
            f"old_str occurs {len(places)} times in {before.path}, at lines {', '.join(lines)}{more}: "
            "add what stands around the one you mean"
        )
    return places[0]


def _near_miss(text: str, old: str) -> str:
    """Where its lines stand with other space around them."""
    wanted = [line.strip() for line in old.strip().split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            return f" exactly; with other spaces it does at line {number + 1}"
    return ""


def _change(before: texts.Text, text: str) -> None:
    _save(before)
    texts.replace(before.path, before.encoded(text), before.mode)


def _save(before: texts.Text | None) -> None:
    if before:
        with open(SAVED, "wb", closefd=False) as memory:
            memory.seek(1)
            memory.write(before.mode.to_bytes(_MODE, "big") + before.data)
    os.pwrite(SAVED, _PRESENT if before else _ABSENT, 0)


def saved(memory: int) -> bool:
    """Whether what a file was is there, so that the file itself may be another by now."""
    return os.pread(memory, 1, 0) in (_PRESENT, _ABSENT)


def _edited(path: str, at: int, new: str) -> str:
    """What the edited place looks like now."""
    text = texts.read(path).text
    lines = _lines(text)
    first = text.count("\n", 0, at) + 1
    last = first + max(0, len(_split(new)) - 1)
    if not lines:
        return f"{path} edited: it is empty now"
    return f"{path} edited:\n{_numbered(lines, max(1, first - AROUND), min(len(lines), last + AROUND))}"
