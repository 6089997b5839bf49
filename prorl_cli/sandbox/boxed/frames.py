"""Length-prefixed JSON frames, the language of worker and box; refuses frames over `MAX_FRAME`."""

from __future__ import annotations

import json
from typing import Any

MAX_FRAME = 4 * 2**20
"""Bytes of one frame: far above any bounded tool output, far below what could hurt a worker with 64 boxes."""

_HEADER = 4


class FrameTooLong(ValueError):
    """A header that announces more than `MAX_FRAME` bytes; nothing after it can be trusted."""


def pack(message: dict[str, Any]) -> bytes:
    """One message as a frame."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise FrameTooLong(f"a frame of {len(body)} bytes (at most {MAX_FRAME})")
    return len(body).to_bytes(_HEADER, "big") + body


class Frames:
    """Bytes in any pieces in, bodies of whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completes. Raises `FrameTooLong`."""
        self._buffer += data
        bodies = []
        while (body := self._next()) is not None:
            bodies.append(body)
        return bodies

    def _next(self) -> bytes | None:
        if len(self._buffer) < _HEADER:
            return None
        end = _HEADER + int.from_bytes(self._buffer[:_HEADER], "big")
        if end > _HEADER + MAX_FRAME:
            raise FrameTooLong(f"a frame of {end - _HEADER} bytes (at most {MAX_FRAME})")
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEADER:end])
        del self._buffer[:end]
        return body
