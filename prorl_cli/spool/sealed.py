"""One record in a small JSON file, sealed with its own length and checksum, so that one flipped bit is seen.

The file reads `{"seal":"<bytes, hex>.<crc32, hex>","record":{…}}`. Called by the files of this room that hold one
record each.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.spool.log import Kind
from prorl_cli.trajectory import Record

R = TypeVar("R", bound=Record)

_HEAD = len('{"seal":"00000000.00000000","record":')
_TAIL = b"}\n"


def seal(record: Record) -> bytes:
    """The bytes of a file that holds `record`."""
    return _wrap(msgspec.json.encode(record))


def unseal(path: Path, data: bytes, kind: type[R]) -> R:
    """The record in `data`, read from `path`; `CorruptRecord` when the bytes are not those that were written."""
    problem = damage(data)
    if problem is not None:
        raise CorruptRecord(f"{path}: offset {problem[0]}: {problem[1]}: {problem[2]}")
    try:
        return msgspec.json.decode(data[_HEAD : -len(_TAIL)], type=kind)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"{path}: offset {_HEAD}: corrupt: not a {kind.__name__}: {error}") from error


def load(path: Path, kind: type[R]) -> R | None:
    """The record in `path`, or None when there is no such file."""
    data = fsio.read(path)
    return None if data is None else unseal(path, data, kind)


def publish_first(path: Path, record: R) -> R:
    """Publish `record` unless somebody has published there: whoever was first is what is returned."""
    if fsio.publish_exclusive(path, seal(record)):
        return record
    winner = load(path, type(record))
    if winner is None:
        raise CorruptRecord(f"{path}: offset 0: truncated: published, then gone")
    return winner


def damage(data: bytes) -> tuple[int, Kind, str] | None:
    """Where and what is wrong with a sealed file's bytes: (offset, kind, words)."""
    whole = _wrap(data[_HEAD : -len(_TAIL)])
    if whole == data:
        return None
    if len(data) < len(whole) or (whole[18:26] != data[18:26] and _written(data) > len(data)):
        return len(data), "truncated", "the file was cut short"
    return 0, "corrupt", "the bytes do not match their checksum"


def _written(data: bytes) -> int:
    """How long the file says it is; 0 when that cannot be read."""
    try:
        return int(data[9:17], 16) + _HEAD + len(_TAIL)
    except ValueError:
        return 0


def _wrap(body: bytes) -> bytes:
    return b'{"seal":"%08x.%08x","record":%s}\n' % (len(body), zlib.crc32(body), body)
