"""A small text that its one writer replaces every few seconds, in place: no name is created, renamed or removed.

The file is two lines of equal size, written in turn, so that one of them is whole whatever a reader catches and
whenever its writer dies. Metadata servers answer for whole clusters: a heartbeat must not cost them two names.
"""

from __future__ import annotations

import os
from pathlib import Path

from prorl_cli.fsio.publishing import publish
from prorl_cli.fsio.reading import read
from prorl_cli.fsio.trouble import reported

LINE = 1024
"""Bytes of a line, or a multiple of them where the text is longer."""


def write_turn(path: Path, text: bytes, turn: int) -> None:
    """Write `text`, one line, as number `turn` of its series; may be lost in a power cut, as `publish` without
    `durable`. `RunDirError` when the filesystem refuses."""
    with reported(path):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return _begin(path, text)
        try:
            size = os.fstat(fd).st_size // 2
            if len(text) <= size:
                os.pwrite(fd, _line(text, size), (turn % 2) * size)
                return None
        finally:
            os.close(fd)
        return _begin(path, text)


def read_turns(path: Path) -> list[bytes] | None:
    """Both lines, each ending in a newline, one of them perhaps torn; None when there is no such file."""
    data = read(path)
    return None if data is None else [line.rstrip(b" ") + b"\n" for line in data.split(b"\n")[:2]]


def _begin(path: Path, text: bytes) -> None:
    publish(path, 2 * _line(text, -(-len(text) // LINE) * LINE), durable=False)


def _line(text: bytes, size: int) -> bytes:
    return text.removesuffix(b"\n").ljust(size - 1) + b"\n"
