"""What a command prints, bounded: its head and its tail, and the exact number of bytes between. Called by `session`."""

from __future__ import annotations

import codecs

HEAD = TAIL = 64 * 1024
"""Bytes kept of either end; the agent cuts further, to tokens."""


class Bounded:
    """Bytes in any pieces in; memory never holds more than head and twice the tail."""

    def __init__(self, head: int = HEAD, tail: int = TAIL) -> None:
        self._head_room = head
        self._tail_room = tail
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> None:
        """What came next."""
        self._total += len(data)
        if room := self._head_room - len(self._head):
            self._head += data[:room]
            data = data[room:]
        self._tail += data[-self._tail_room :]
        if len(self._tail) > 2 * self._tail_room:
            del self._tail[: -self._tail_room]

    def text(self) -> tuple[str, int]:
        """All of it as text, or both ends with the number of omitted bytes between; and that number."""
        tail = bytes(self._tail[-self._tail_room :])
        if len(self._head) + len(tail) == self._total:
            return (bytes(self._head) + tail).decode(errors="replace"), 0
        head, taken = codecs.utf_8_decode(bytes(self._head), "replace", False)  # no half character at the cut
        tail = tail[_within_character(tail) :]
        omitted = self._total - taken - len(tail)
        return f"{head}\n[... {omitted} bytes omitted ...]\n{tail.decode(errors='replace')}", omitted


def _within_character(data: bytes) -> int:
    """How many bytes at the start continue a character of UTF-8 that began before."""
    return next((place for place, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), min(3, len(data)))
