"""The reader of a log: new rows by its index, records by their rows, and what a damaged index hides by walking.

Every call re-opens; nothing is kept open or asked by `exists()`. An entry that is not intact never hides later ones:
its record is looked for in the segment. Refuses to guess: bytes that fail their checksum raise `CorruptRecord`. Called
by the trajectory and request followers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.spool.log.format import (
    FILE_HEADER_SIZE,
    IndexFile,
    Layout,
    Row,
    indexes,
    segment_name,
    segments,
)
from prorl_cli.spool.log.walk import Intact, walk

_CHUNK = 8192
"""Index entries decoded at a time; bounds the memory of a follower that starts far behind."""


class LogReader:
    """Follows the log in `folder` from its first record; the folder need not exist yet."""

    def __init__(self, folder: Path, facts_size: int) -> None:
        self.folder = folder
        self.lost = 0
        """Entries given up so far: neither they nor their records are intact."""
        self._layout = Layout.of(folder, facts_size)
        self._index = IndexFile(0, 0, "")
        self._next = 0
        self._end = (1, FILE_HEADER_SIZE)

    def poll(self) -> list[Row]:
        """All rows committed since the last call, ascending by `seq`, each once."""
        return [row for rows in self.chunks() for row in rows]

    def chunks(self) -> Iterator[list[Row]]:
        """As `poll`, a few thousand rows at a time, in constant memory."""
        found = [file for file in indexes(fsio.names(self.folder)) if file.ordinal >= self._index.ordinal]
        for file in found:
            if file != self._index:
                yield from self._enter(file)
            with fsio.reading(self.folder / file.name) as opened:
                if opened is not None:
                    yield from self._follow(opened, sealed=file != found[-1])

    def rest(self) -> list[Row]:
        """The intact records past all that the index still names. Only where the writer is dead: a living one commits
        them itself."""
        return self._recover(None)

    def everything(self) -> Iterator[list[Row]]:
        """`chunks`, then `rest`: every intact record, for readers that keep nothing."""
        yield from self.chunks()
        yield self.rest()

    def read(self, row: Row) -> bytes:
        """The body of a record; `CorruptRecord` names file and offset when its bytes are damaged."""
        path = self.folder / segment_name(row.segment)
        with fsio.reading(path) as file:
            data = b"" if file is None else file.read(row.offset, row.length)
        opened = self._layout.open_record(data, row.seq, row.segment, row.offset)
        if opened is None:
            kind = "corrupt" if len(data) == row.length else "truncated"
            raise CorruptRecord(f"{path}: offset {row.offset}: {kind}: record {row.seq} of {self.folder.name}")
        return opened[1]

    def find(self, seq: int) -> bytes:
        """The body of record `seq` by its index entry, or by walking the segments when that is damaged;
        `CorruptRecord` when no intact copy exists."""
        problem = f"{self.folder}: offset 0: truncated: record {seq} is not there"
        for row in self._candidates(seq):
            try:
                return self.read(row)
            except CorruptRecord as error:
                problem = str(error)
        raise CorruptRecord(problem)

    def _candidates(self, seq: int) -> Iterator[Row]:
        for file in reversed(indexes(fsio.names(self.folder))):
            with fsio.reading(self.folder / file.name) as opened:
                if opened is not None and seq >= file.base:
                    yield from self._layout.rows(self._slots(opened, seq - file.base, 1), seq)
        for number, start in self._segments_from((1, FILE_HEADER_SIZE)):
            yield from (row for row in self._walked(number, start) if row.seq == seq)

    def _enter(self, file: IndexFile) -> Iterator[list[Row]]:
        """Leave the current index for the next one; what the old one should have named is looked for."""
        if file.base > self._next:
            if recovered := self._recover(file.base):
                yield recovered
            self._give_up(file.base)
        self._index = file

    def _follow(self, opened: fsio.OpenFile, *, sealed: bool) -> Iterator[list[Row]]:
        while data := self._slots(opened, self._next - self._index.base, _CHUNK):
            rows = self._layout.rows(data, self._next)
            if rows:
                self._advance(rows[-1])
                yield rows
            if len(rows) * self._layout.entry.size < len(data):
                recovered = self._recover(self._next + 1)
                if recovered:
                    yield recovered
                elif sealed or self._continues(data, len(rows)):
                    self._give_up(self._next + 1)
                else:
                    return

    def _slots(self, opened: fsio.OpenFile, slot: int, count: int) -> bytes:
        """Up to `count` whole entries from `slot`."""
        size = self._layout.entry.size
        data = opened.read(FILE_HEADER_SIZE + slot * size, count * size)
        return data[: len(data) // size * size]

    def _continues(self, data: bytes, bad: int) -> bool:
        """Whether an intact entry, or very much, follows the one at slot `bad`: then the bad one is damage, and not
        still on its way."""
        size = self._layout.entry.size
        later = range(bad + 1, len(data) // size)
        first = self._next - bad
        intact = any(self._layout.rows(data[slot * size : (slot + 1) * size], first + slot) for slot in later)
        return intact or len(later) + bad + 1 == _CHUNK

    def _advance(self, row: Row) -> None:
        self._next = row.seq + 1
        self._end = (row.segment, row.offset + row.length)

    def _give_up(self, seq: int) -> None:
        self.lost += max(seq - self._next, 0)
        self._next = max(seq, self._next)

    def _recover(self, below: int | None) -> list[Row]:
        """Intact records from the next one on, up to record `below`, without the index."""
        found: list[Row] = []
        for number, start in self._segments_from(self._end):
            for row in self._walked(number, start):
                if below is not None and row.seq >= below:
                    return found
                if row.seq >= self._next:
                    self._give_up(row.seq)
                    found.append(row)
                    self._advance(row)
        return found

    def _segments_from(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        first, offset = place
        numbers = [number for number in segments(fsio.names(self.folder)) if number >= first]
        return [(number, offset if number == first else FILE_HEADER_SIZE) for number in numbers]

    def _walked(self, number: int, start: int) -> Iterator[Row]:
        with fsio.reading(self.folder / segment_name(number)) as file:
            for found in walk(file, self._layout, number, start) if file is not None else ():
                if isinstance(found, Intact):
                    yield Row(found.seq, number, found.offset, found.length, found.facts)
