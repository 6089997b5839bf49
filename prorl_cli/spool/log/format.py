"""The bytes of a log: file headers, records, index entries, and the names of its files.

    file header   magic 8 | format u16 | facts size u16 | number u32 | created ns u64 | log 8 | zeros 28 | crc u32
    record        magic 4 | body bytes u32 | seq u64 | facts bytes u16 | 0 u16 | crc u32 | facts | body | crc u32
    index entry   seq u64 | segment u32 | record bytes u32 | offset u64 | facts | crc u32

All little-endian. Every checksum starts from the log's own name, and a record header's also from its segment and
offset: bytes of another log or another place never pass. Pure: called by the writer, the reader and the scan.
"""

from __future__ import annotations

import hashlib
import re
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

FORMAT = 1
SEGMENT_MAGIC, INDEX_MAGIC = b"PRORLSEG", b"PRORLIDX"
RECORD_MAGIC = b"\xff\xfePR"
"""Not valid UTF-8, so that no text inside a record looks like the start of one."""
MAX_BODY = 256 << 20
"""Bytes; a larger length is damage, and is refused before memory is spent on it."""

FILE_HEADER = struct.Struct("<8sHHIQ8s28x")
FILE_HEADER_SIZE = FILE_HEADER.size + 4
RECORD_HEADER = struct.Struct("<4sIQHH")
RECORD_HEADER_SIZE = RECORD_HEADER.size + 4
PLACE = struct.Struct("<IQ")
SEQ = struct.Struct("<Q")
CRC = struct.Struct("<I")

_SEGMENT = re.compile(r"(\d{6,})\.seg")
_INDEX = re.compile(r"index(?:\.(\d{6,})\.(\d+))?")


class Row(msgspec.Struct, frozen=True, gc=False):
    """Where record `seq` lies: `length` bytes at `offset` of segment number `segment`; and its facts."""

    seq: int
    segment: int
    offset: int
    length: int
    facts: bytes


class Header(NamedTuple):
    """An intact record header: the record's number and its whole length in bytes."""

    seq: int
    length: int


class IndexFile(NamedTuple):
    """One index: its slot k belongs to record `base + k`. Each error of its writer adds another."""

    ordinal: int
    base: int
    name: str


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"{number:06d}.seg"


def index_name(ordinal: int, base: int) -> str:
    """File name of an index; the first one is plainly `index`."""
    return "index" if ordinal == 1 else f"index.{ordinal:06d}.{base}"


def segments(names: list[str]) -> list[int]:
    """The segment numbers among file names, ascending."""
    return sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))


def indexes(names: list[str]) -> list[IndexFile]:
    """The index files among file names, in the order in which they were written."""
    found = [match for name in names if (match := _INDEX.fullmatch(name))]
    return sorted(IndexFile(int(match[1] or 1), int(match[2] or 0), match[0]) for match in found)


@dataclass(frozen=True, slots=True)
class Layout:
    """The formats of one log: `facts_size` bytes of facts a record, checksums seeded by the log's identity."""

    facts_size: int
    identity: bytes
    seed: int
    entry: struct.Struct

    @classmethod
    def of(cls, folder: Path, facts_size: int) -> Layout:
        """The layout of the log in `folder`; its identity is the last two names of the path."""
        name = "/".join(folder.absolute().parts[-2:])
        identity = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return cls(facts_size, identity, zlib.crc32(identity), struct.Struct(f"<QIIQ{facts_size}sI"))

    def file_header(self, magic: bytes, number: int) -> bytes:
        """The first bytes of a segment or an index."""
        head = FILE_HEADER.pack(magic, FORMAT, self.facts_size, number, time.time_ns(), self.identity)
        return head + CRC.pack(zlib.crc32(head, self.seed))

    def is_file_header(self, data: bytes, magic: bytes) -> bool:
        """Whether `data` is an intact file header of this log."""
        return (
            len(data) == FILE_HEADER_SIZE
            and data.startswith(magic)
            and CRC.pack(zlib.crc32(data[:-4], self.seed)) == data[-4:]
        )

    def pack_header(self, seq: int, body: int, segment: int, offset: int) -> bytes:
        """The header of a record with a body of `body` bytes that lies at `offset` of `segment`."""
        head = RECORD_HEADER.pack(RECORD_MAGIC, body, seq, self.facts_size, 0)
        return head + CRC.pack(zlib.crc32(head, self._place(segment, offset)))

    def checksum(self, seq: int, facts: bytes, body: bytes) -> bytes:
        """What follows the facts and the body of record `seq`."""
        return CRC.pack(zlib.crc32(body, zlib.crc32(facts, zlib.crc32(SEQ.pack(seq), self.seed))))

    def header(self, data: bytes, segment: int, offset: int) -> Header | None:
        """The record header that `data`, read from `offset`, starts with; None when it is not an intact one."""
        if len(data) < RECORD_HEADER_SIZE or not data.startswith(RECORD_MAGIC):
            return None
        _, size, seq, facts, _ = RECORD_HEADER.unpack_from(data)
        (crc,) = CRC.unpack_from(data, RECORD_HEADER.size)
        intact = crc == zlib.crc32(data[: RECORD_HEADER.size], self._place(segment, offset))
        return Header(seq, self.record_size(size)) if intact and facts == self.facts_size and size <= MAX_BODY else None

    def _place(self, segment: int, offset: int) -> int:
        return zlib.crc32(PLACE.pack(segment, offset), self.seed)

    def record_size(self, body: int) -> int:
        """Bytes of a whole record with a body of `body` bytes."""
        return RECORD_HEADER_SIZE + self.facts_size + body + CRC.size

    def open_record(self, data: bytes, seq: int, segment: int, offset: int) -> tuple[bytes, bytes] | None:
        """Facts and body of a record; None when `data`, read from `offset`, is not exactly the intact record `seq`."""
        if self.header(data, segment, offset) != (seq, len(data)):
            return None
        start = RECORD_HEADER_SIZE + self.facts_size
        facts, body = data[RECORD_HEADER_SIZE:start], data[start : -CRC.size]
        return (facts, body) if self.checksum(seq, facts, body) == data[-CRC.size :] else None

    def pack_entry(self, row: Row) -> bytes:
        """The index entry of a record."""
        plain = self.entry.pack(row.seq, row.segment, row.length, row.offset, row.facts, 0)[: -CRC.size]
        return plain + CRC.pack(zlib.crc32(plain, self.seed))

    def rows(self, data: bytes, first: int) -> list[Row]:
        """The intact entries at the start of `data`, whose slots belong to records `first`, `first + 1`, …"""
        found: list[Row] = []
        add, crc32, seed, view = found.append, zlib.crc32, self.seed, memoryview(data)
        size = self.entry.size
        start, end = 0, size - CRC.size
        for seq, segment, length, offset, facts, crc in self.entry.iter_unpack(data):
            if crc32(view[start:end], seed) != crc or seq != first:
                break
            add(Row(seq, segment, offset, length, facts))
            first, start, end = first + 1, start + size, end + size
        return found
