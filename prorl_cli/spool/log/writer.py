"""The one writer of a log.

`append` buffers, `commit` makes durable: records, fsync, then their index entries, fsync. After any error both files
are left for good, what was not committed stays buffered, and the next commit goes on in new files. Refuses a folder
that exists. Called by the trajectory and request writers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import RunDirError
from prorl_cli.spool.log.format import (
    INDEX_MAGIC,
    MAX_BODY,
    SEGMENT_MAGIC,
    Layout,
    Row,
    index_name,
    segment_name,
)

_WRITE_BYTES = 4 << 20
"""Bytes joined for one system call: large enough for the disk, small enough to copy."""


class LogWriter:
    """Appends records to a new log; not thread-safe. Segments roll at the first commit past `roll_bytes`."""

    def __init__(self, folder: Path, *, facts_size: int, roll_bytes: int = 64 << 20) -> None:
        """Make the log's folder; `RunDirError` when it exists, since a log has one writer for ever."""
        if not fsio.make_folder(folder):
            raise RunDirError(f"{folder} already has a writer: a log is never resumed, use a new incarnation's name")
        self.folder = folder
        self._layout = Layout.of(folder, facts_size)
        self._roll_bytes = roll_bytes
        self._next = 0
        self._pending: list[tuple[int, bytes, bytes, bytes]] = []
        self._number = 0
        self._segment: fsio.AppendFile | None = None
        self._index: fsio.AppendFile | None = None

    def append(self, body: bytes, facts: bytes = b"") -> int:
        """Buffer a record; returns its sequence number, gapless from 0. ValueError for a wrong size."""
        if len(body) > MAX_BODY or len(facts) != self._layout.facts_size:
            raise ValueError(f"a body of {len(body)} bytes (at most {MAX_BODY}) with {len(facts)} bytes of facts")
        seq, self._next = self._next, self._next + 1
        self._pending.append((seq, facts, body, self._layout.checksum(seq, facts, body)))
        return seq

    def commit(self) -> None:
        """Return once all that was appended is durable and visible. `RunDirError` when the filesystem refuses: then
        nothing more is visible, and the same records are written elsewhere by the next commit."""
        if not self._pending:
            return
        try:
            self._write_entries(self._write_records())
        except BaseException:
            self._abandon()
            raise
        self._pending.clear()

    def close(self) -> None:
        """Commit and close, idempotent."""
        self.commit()
        for file in (self._segment, self._index):
            if file is not None:
                file.close()
        self._segment = self._index = None

    def _write_records(self) -> list[Row]:
        segment, pieces = self._current_segment()
        fresh = bool(pieces)
        offset = segment.size + sum(map(len, pieces))
        rows = []
        for seq, facts, body, checksum in self._pending:
            length = self._layout.record_size(len(body))
            rows.append(Row(seq, self._number, offset, length, facts))
            pieces += (self._layout.pack_header(seq, len(body), self._number, offset), facts, body, checksum)
            offset += length
        for data in _joined(pieces):
            segment.append(data)
        segment.sync()
        if fresh:
            fsio.fsync_folder(self.folder)
        return rows

    def _current_segment(self) -> tuple[fsio.AppendFile, list[bytes]]:
        """The segment to write to, and the header it still needs when it is new."""
        if self._segment is not None and self._segment.size < self._roll_bytes:
            return self._segment, []
        if self._segment is not None:
            self._segment.close()
        self._number += 1
        self._segment = fsio.AppendFile(self.folder / segment_name(self._number))
        return self._segment, [self._layout.file_header(SEGMENT_MAGIC, self._number)]

    def _write_entries(self, rows: list[Row]) -> None:
        data = b"".join(map(self._layout.pack_entry, rows))
        fresh = self._index is None
        if self._index is None:
            self._index = fsio.AppendFile(self.folder / index_name(self._number, rows[0].seq))
            data = self._layout.file_header(INDEX_MAGIC, self._number) + data
        self._index.append(data)
        self._index.sync()
        if fresh:
            fsio.fsync_folder(self.folder)

    def _abandon(self) -> None:
        for file in (self._segment, self._index):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._segment = self._index = None


def _joined(pieces: list[bytes]) -> Iterator[bytes]:
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= _WRITE_BYTES:
            yield b"".join(batch)
            batch, size = [], 0
    if batch:
        yield b"".join(batch)
