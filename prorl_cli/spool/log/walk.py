"""Walks the records of a segment without its index: what is intact, and between it what is not.

A damaged header loses one record, not the rest: the next one is found by its magic and checksum. Reads one record at a
time. Called by the reader (to recover what a damaged index hides) and the scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prorl_cli.fsio import OpenFile
from prorl_cli.spool.log.format import FILE_HEADER_SIZE, RECORD_HEADER_SIZE, RECORD_MAGIC, Layout

_WINDOW = 1 << 20
"""Bytes searched at a time for the next record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intact:
    """Record `seq`, whole, `length` bytes at `offset`."""

    seq: int
    offset: int
    length: int
    facts: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Bytes `offset:end` hold no intact record; `cut`: they may be the beginning of one that ends past the file."""

    offset: int
    end: int
    cut: bool
    what: str


def walk(file: OpenFile, layout: Layout, number: int, start: int = FILE_HEADER_SIZE) -> Iterator[Intact | Damage]:
    """Everything in segment `number` from byte `start`, in order, with no byte left out."""
    at = start
    while at < file.size:
        found = _step(file, layout, number, at)
        yield found
        at = found.end if isinstance(found, Damage) else found.offset + found.length


def _step(file: OpenFile, layout: Layout, number: int, at: int) -> Intact | Damage:
    header = layout.header(file.read(at, RECORD_HEADER_SIZE), number, at)
    if header is None:
        cut, what = file.size - at < RECORD_HEADER_SIZE, "no record header that matches its checksum"
    elif at + header.length > file.size:
        cut, what = True, f"record {header.seq} is cut short"
    else:
        opened = layout.open_record(file.read(at, header.length), header.seq, number, at)
        if opened is not None:
            return Intact(seq=header.seq, offset=at, length=header.length, facts=opened[0])
        cut, what = False, f"record {header.seq} does not match its checksum"
    end = _next_header(file, layout, number, at + 1)
    return Damage(offset=at, end=end, cut=cut and end == file.size, what=what)


def _next_header(file: OpenFile, layout: Layout, number: int, at: int) -> int:
    """Where the next intact record header begins; the end of the file when there is none."""
    while at < file.size:
        window = file.read(at, _WINDOW)
        place = window.find(RECORD_MAGIC)
        while place >= 0:
            if layout.header(file.read(at + place, RECORD_HEADER_SIZE), number, at + place) is not None:
                return at + place
            place = window.find(RECORD_MAGIC, place + 1)
        at += max(len(window) - len(RECORD_MAGIC) + 1, 1)
    return file.size
