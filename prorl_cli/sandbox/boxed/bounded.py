"""Output of any length in bounded memory: its head and its tail, and how many bytes lie between them.

Refuses to cut inside a UTF-8 character: its other bytes count as omitted. Used by the sessions of bash and python.
"""

from __future__ import annotations

HEAD = TAIL = 64 * 1024
"""Bytes kept of each end; the agent cuts further, to tokens."""

_LONGEST = 4
"""Bytes of one character."""


class Bounded:
    """Feed it bytes; `text` at any time."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._limits = head, tail
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """More of the output."""
        self._total += len(data)
        room = self._limits[0] - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._limits[1] :]
        if len(self._tail) > 2 * self._limits[1]:
            del self._tail[: -self._limits[1]]

    @property
    def omitted(self) -> int:
        """Bytes that `text` leaves out."""
        head, tail = self._ends()
        return self._total - len(head) - len(tail)

    def text(self) -> str:
        """All of it, or both ends around a line that says exactly what is missing; what is no UTF-8 becomes U+FFFD."""
        head, tail = self._ends()
        omitted = self._total - len(head) - len(tail)
        if not omitted:
            return (head + tail).decode(errors="replace")
        return f"{head.decode(errors='replace')}\n[… {omitted} bytes omitted …]\n{tail.decode(errors='replace')}"

    def _ends(self) -> tuple[bytes, bytes]:
        head, tail = bytes(self._head), bytes(self._tail[-self._limits[1] :])
        if len(head) + len(tail) == self._total:
            return head, tail
        return _without_torn_end(head), _without_torn_start(tail)


def _without_torn_end(data: bytes) -> bytes:
    """Without the first bytes of a character whose last ones are cut off."""
    for length in range(1, min(_LONGEST, len(data) + 1)):
        first = data[-length]
        if first >= 0xC0:
            return data[:-length] if _size(first) > length else data
        if first < 0x80:
            break
    return data


def _without_torn_start(data: bytes) -> bytes:
    """Without the last bytes of a character whose first ones are cut off."""
    for length in range(min(_LONGEST, len(data))):
        if data[length] & 0xC0 != 0x80:
            return data[length:]
    return data if len(data) >= _LONGEST else b""


def _size(first: int) -> int:
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
