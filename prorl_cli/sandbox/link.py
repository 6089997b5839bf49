"""The worker's end of one box's socket: frames out, replies in, each to whoever expects its id.

Refuses what is no frame: the box that sent it is cut off. A reply that nobody expects any more is dropped, so a
stale one can never be taken for another.
"""

from __future__ import annotations

import asyncio
import socket

import msgspec

from prorl_cli.sandbox.boxed.frames import Frames, FrameTooLong
from prorl_cli.sandbox.results import Reply


class Link:
    """Owns `sock`; `nonsense` once something came that is no frame."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._sock.setblocking(False)
        self._frames = Frames()
        self._unsent = bytearray()
        self._expected: dict[int, asyncio.Future[Reply]] = {0: self._loop.create_future()}
        self.nonsense = False
        self._loop.add_reader(sock, self._receive)

    def expect(self, number: int) -> asyncio.Future[Reply]:
        """The future reply `number`."""
        return self._expected.setdefault(number, self._loop.create_future())

    def forget(self, number: int) -> None:
        """Drop reply `number`, should it still come."""
        self._expected.pop(number, None)

    def send(self, frame: bytes) -> None:
        """Send in the background; what a box that has ended does not read is lost."""
        self._unsent += frame
        self._flush()

    def _flush(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._loop.remove_writer(self._sock)
        try:
            del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if self._unsent:
            self._loop.add_writer(self._sock, self._flush)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            replies = [msgspec.json.decode(body, type=Reply) for body in self._frames.feed(data)]
        except (FrameTooLong, msgspec.MsgspecError):
            self.nonsense = True
            self.close()  # its supervisor then leaves
            return
        for reply in replies:
            expected = self._expected.get(reply.id)
            if expected and not expected.done():
                expected.set_result(reply)

    def close(self) -> None:
        """Twice is fine."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
