"""A file that exactly one process writes, once, from its first byte to its last.

It is created exclusively and never re-opened: after a restart or an error the writer starts another file, so nothing
is ever appended behind a torn tail. Called by the logs of `spool`.
"""

from __future__ import annotations

import os
from pathlib import Path

from prorl_cli.fsio.trouble import reported


def write_all(fd: int, data: bytes) -> None:
    """`os.write` until all of `data` is written."""
    written = os.write(fd, data)
    if written < len(data):
        rest = memoryview(data)
        while written < len(data):
            written += os.write(fd, rest[written:])


class AppendFile:
    """An append-only file of one writer; every method raises `RunDirError` when the filesystem refuses."""

    def __init__(self, path: Path) -> None:
        """Create `path`; FileExistsError when it is there."""
        self.path = path
        self.size = 0
        with reported(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def append(self, data: bytes) -> None:
        """Write `data` at the end; it is durable after `sync`."""
        with reported(self.path):
            write_all(self._fd, data)
        self.size += len(data)

    def sync(self) -> None:
        """Return once everything appended is on storage. After it raised, the file must be abandoned: a second
        fsync of a failed descriptor may report success for bytes that are lost."""
        with reported(self.path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close, idempotent; quota errors may surface here on network filesystems."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with reported(self.path):
                os.close(fd)
