"""Everything that is wrong in a log, with file and offset.

*Incomplete*: the writer lives and may still finish it. *Truncated*: it never will; the valid prefix counts. *Corrupt*:
bytes that were committed, or lie before intact ones, and are not what was written. Refuses to repair. Called by
`spool.verify` and so by `prorl spool verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_cli import fsio
from prorl_cli.spool.log.format import (
    CRC,
    FILE_HEADER_SIZE,
    INDEX_MAGIC,
    SEGMENT_MAGIC,
    IndexFile,
    Layout,
    indexes,
    segment_name,
    segments,
)
from prorl_cli.spool.log.walk import Damage, walk

Kind = Literal["incomplete", "truncated", "corrupt"]

_CHUNK = 8192
"""Index entries read at a time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong at byte `offset` of `file`."""

    file: Path
    offset: int
    kind: Kind
    what: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.kind}: {self.what}"


def scan(folder: Path, facts_size: int, writer_dead: bool) -> Iterator[Finding]:
    """Findings of the log in `folder`, its index first; reads every byte, in constant memory."""
    return _Scan(folder, Layout.of(folder, facts_size), "truncated" if writer_dead else "incomplete").findings()


class _Scan:
    """One walk over a log. `ends` says how far the index promises each segment to reach, `records` how many it
    promises, `intact` how many there are."""

    def __init__(self, folder: Path, layout: Layout, unfinished: Kind) -> None:
        self.folder, self.layout, self.unfinished = folder, layout, unfinished
        self.ends: dict[int, int] = {}
        self.records = self.intact = 0
        self.torn = False

    def findings(self) -> Iterator[Finding]:
        files = fsio.names(self.folder)
        found, numbers = indexes(files), segments(files)
        for file in found:
            yield from self._index(file, self.unfinished if file == found[-1] else "truncated")
        for number in sorted({*numbers, *self.ends}):
            yield from self._segment(number, self.unfinished if number >= max(numbers, default=0) else "truncated")
        if self.intact > self.records and not self.torn:
            path = self.folder / (found[-1].name if found else "index")
            yield Finding(
                path, _size(path), self.unfinished, f"{self.intact - self.records} whole records lack entries"
            )

    def _index(self, file: IndexFile, unfinished: Kind) -> Iterator[Finding]:
        path = self.folder / file.name
        with fsio.reading(path) as opened:
            size = 0 if opened is None else opened.size
            self.torn = size < FILE_HEADER_SIZE
            if opened is None or self.torn:
                yield Finding(path, size, unfinished, "a torn file header")
                return
            if not self.layout.is_file_header(opened.read(0, FILE_HEADER_SIZE), INDEX_MAGIC):
                yield Finding(path, 0, "corrupt", "the file header does not match its checksum")
            yield from self._entries(path, opened, file.base, unfinished)

    def _entries(self, path: Path, opened: fsio.OpenFile, base: int, unfinished: Kind) -> Iterator[Finding]:
        at, size, seq = FILE_HEADER_SIZE, self.layout.entry.size, base
        while len(data := opened.read(at, _CHUNK * size)) >= size:
            rows = self.layout.rows(data[: len(data) // size * size], seq)
            for row in rows:
                self.ends[row.segment] = max(self.ends.get(row.segment, 0), row.offset + row.length)
            at, seq = at + len(rows) * size, seq + len(rows)
            if (len(rows) + 1) * size <= len(data):
                kind = unfinished if self._unwritten(opened, at) else "corrupt"
                yield Finding(path, at, kind, f"the entry of record {seq} does not match its checksum")
                at, seq = at + size, seq + 1
        self.records = max(self.records, seq)
        self.torn = len(data) > 0
        if self.torn:
            yield Finding(path, at, unfinished, "a torn entry")

    def _unwritten(self, opened: fsio.OpenFile, at: int) -> bool:
        """Whether the entry at `at` is the last one and its end is still blank."""
        data = opened.read(at, 2 * self.layout.entry.size)
        return len(data) < 2 * self.layout.entry.size and not any(data[self.layout.entry.size - CRC.size :])

    def _segment(self, number: int, unfinished: Kind) -> Iterator[Finding]:
        path, promised = self.folder / segment_name(number), self.ends.get(number, 0)
        with fsio.reading(path) as opened:
            if opened is None:
                yield Finding(path, 0, "truncated", "the segment is missing")
                return
            if opened.size < FILE_HEADER_SIZE:
                yield Finding(path, opened.size, unfinished, "a torn file header")
                return
            if not self.layout.is_file_header(opened.read(0, FILE_HEADER_SIZE), SEGMENT_MAGIC):
                yield Finding(path, 0, "corrupt", "the file header does not match its checksum")
            end = opened.size
            for found in walk(opened, self.layout, number):
                if isinstance(found, Damage):
                    end = found.offset if found.cut else end
                    yield Finding(path, found.offset, _kind(found, opened.size, promised, unfinished), found.what)
                else:
                    self.intact = max(self.intact, found.seq + 1)
            if end == opened.size < promised:
                yield Finding(path, end, unfinished, "committed records are cut off")


def _kind(damage: Damage, size: int, promised: int, unfinished: Kind) -> Kind:
    """Before other bytes, or whole and promised by the index: corrupt. Else it is the tail."""
    if damage.end < size or (damage.offset < promised and not damage.cut):
        return "corrupt"
    return unfinished


def _size(path: Path) -> int:
    with fsio.reading(path) as file:
        return 0 if file is None else file.size
