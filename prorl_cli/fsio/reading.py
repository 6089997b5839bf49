"""Reads that re-open: on a network filesystem only `open` and a listing are promised to be fresh.

Nothing is asked by `exists()`. Called by `spool`'s readers and followers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from prorl_cli.fsio.trouble import reported

T = TypeVar("T")

_ATTEMPTS = 10
"""How often a stale handle is re-opened before it is believed."""


class OpenFile:
    """A file open for reading; `size` in bytes when it was opened."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self.size = os.fstat(fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        with reported(self.path, "read"):
            data = os.pread(self._fd, length, offset)
            while 0 < len(data) < length:
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        return data


@contextmanager
def reading(path: Path) -> Iterator[OpenFile | None]:
    """`path` freshly opened, or None when there is no such file."""
    fd = _retried(path, lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    if fd is None:
        yield None
        return
    try:
        yield OpenFile(path, fd)
    finally:
        os.close(fd)


def read(path: Path) -> bytes | None:
    """All of `path`; None when there is no such file."""
    return _retried(path, lambda: _read_once(path))


def names(folder: Path) -> list[str]:
    """Names in `folder`, sorted; empty when there is no such folder or it is something else."""
    return sorted(_retried(folder, lambda: os.listdir(folder)) or [])


def _read_once(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        file = OpenFile(path, fd)
        data = file.read(0, file.size)
        while more := os.pread(fd, 1 << 16, len(data)):
            data += more
        return data
    finally:
        os.close(fd)


def _retried(path: Path, act: Callable[[], T]) -> T | None:
    for _ in range(_ATTEMPTS - 1):
        try:
            return _or_none(path, act)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return _or_none(path, act)


def _or_none(path: Path, act: Callable[[], T]) -> T | None:
    with reported(path, "read"):
        try:
            return act()
        except (FileNotFoundError, NotADirectoryError):
            return None
