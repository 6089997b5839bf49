"""What a builder says, in a file that cannot grow: its beginning and its end.

A builder that is killed takes none of it along. Refuses nothing. Called by `store` and `build`.
"""

from __future__ import annotations

import os
from typing import IO

HEAD, TAIL = 1 << 20, 4 << 20
"""Bytes that stay; a line between them says how many do not."""


class BuildLog:
    """The log in `file`, a new one that can be read, too."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left_out = 0
        self._tail_at = HEAD

    def write(self, data: bytes) -> None:
        """Raises `OSError`."""
        self._file.write(data)
        self._file.flush()
        if self._file.tell() > self._tail_at + 2 * TAIL:
            self._shorten()

    def _shorten(self) -> None:
        start = self._file.seek(-TAIL, os.SEEK_END)
        tail = self._file.read()
        self._left_out += start - self._tail_at
        self._file.seek(HEAD)
        self._file.write(f"\n… {self._left_out} bytes left out …\n".encode())
        self._tail_at = self._file.tell()
        self._file.write(tail)
        self._file.truncate()
