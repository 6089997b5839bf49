"""Commands from rank 0 to the other ranks, over one TLS connection a rank that is also their bond of life.

Rank 0's commands are what makes a rank act, so they need the run's certificate and its data token. When either end of
a connection dies, the other end's process ends at once and hard: it may hang in a collective that nobody will complete.
Called by the DeepSpeed trainer (rank 0) and followers.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, NoReturn

import msgspec

from prorl_cli.errors import ProrlError
from prorl_cli.learner.batch import Share
from prorl_cli.learner.ranks import JOIN_S
from prorl_cli.learner.trainer import Interrupted, StepNumbers
from prorl_cli.rundir import RunDir
from prorl_cli.trajectory import Record
from prorl_cli.wire.client import pinned
from prorl_cli.wire.server import same_token, shown

log = logging.getLogger("learner")

_LENGTH = struct.Struct("<Q")
_HANDSHAKE_S = 5.0
_MAX_HELLO = 4096
_SILENT_NODE_MS = 30_000
"""A node that lost its power or network sends no FIN; its connection counts as dead after this."""


class Command(Record):
    """One method of the trainer, for every rank at once; `shares` are the receiver's own."""

    do: Literal["load", "set_reference", "train", "save", "restore", "export", "digests", "end"]
    folder: str = ""
    shares: tuple[Share, ...] = ()
    numbers: StepNumbers | None = None


class Hello(Record):
    """The first thing that a rank says."""

    token: str
    rank: int


class Leader:
    """Rank 0's end of all lifelines."""

    def __init__(self, run: RunDir, listener: socket.socket, ranks: int, halted: Callable[[], bool]) -> None:
        self._token = run.data_token.read_text()
        self._links: dict[int, ssl.SSLSocket] = {}
        self._closing = False
        with listener:
            self._gather(listener, shown(run.certificate, run.private_key), ranks, halted)
        threading.Thread(target=self._watch, name="lifelines", daemon=True).start()

    def tell(self, command: Callable[[int], Command]) -> None:
        """Send every rank its own."""
        for rank, link in self._links.items():
            _send(link, command(rank))

    def close(self) -> None:
        """Tell all ranks to end; their connections may go now."""
        self._closing = True
        with suppress(OSError):
            self.tell(lambda rank: Command(do="end"))
        for link in self._links.values():
            link.close()

    def _gather(self, listener: socket.socket, context: ssl.SSLContext, ranks: int, halted: Callable[[], bool]) -> None:
        listener.settimeout(0.5)
        end = time.monotonic() + JOIN_S
        while len(self._links) < ranks - 1:
            if halted():
                raise Interrupted("the learner has to stop before all of its ranks were there")
            if time.monotonic() > end:
                missing = sorted(set(range(1, ranks)) - set(self._links))
                raise ProrlError(f"ranks {missing} of the learner were not there within {JOIN_S:.0f} s")
            with suppress(TimeoutError):
                self._admit(listener.accept()[0], context, ranks)

    # Strangers are turned away without a word: any of them could fill a disk with ours.
    def _admit(self, connection: socket.socket, context: ssl.SSLContext, ranks: int) -> None:
        connection.settimeout(_HANDSHAKE_S)
        try:
            link = context.wrap_socket(connection, server_side=True)
            hello = msgspec.msgpack.decode(_receive(link, _MAX_HELLO), type=Hello)
        except (OSError, EOFError, msgspec.DecodeError):
            connection.close()
            return
        if same_token(hello.token, self._token) and 0 < hello.rank < ranks:
            _keep_alive(link)
            self._links[hello.rank] = link
            log.info("rank %d of %d is there", hello.rank, ranks)
        else:
            link.close()

    def _watch(self) -> None:
        poller = select.poll()
        ranks = {link.fileno(): rank for rank, link in self._links.items()}
        for number in ranks:
            poller.register(number, select.POLLRDHUP)
        lost = poller.poll()
        if not self._closing:
            _perish(f"rank {ranks[lost[0][0]]} of the learner is gone")


class Lifeline:
    """A follower's end."""

    def __init__(self, run: RunDir, rank: int, address: str, port: int) -> None:
        plain = socket.create_connection((address, port), timeout=_HANDSHAKE_S)
        self._link = pinned(run.certificate).wrap_socket(plain)
        _send(self._link, Hello(token=run.data_token.read_text(), rank=rank))
        _keep_alive(self._link)
        self._arrived: queue.SimpleQueue[Command] = queue.SimpleQueue()

    @property
    def address(self) -> str:
        """This node's address on the network that leads to rank 0."""
        return str(self._link.getsockname()[0])

    def commands(self) -> Iterator[Command]:
        """Until `end`. From now on this process ends when rank 0 does."""
        threading.Thread(target=self._read, name="lifeline", daemon=True).start()
        while (command := self._arrived.get()).do != "end":
            yield command

    def _read(self) -> None:
        decoder = msgspec.msgpack.Decoder(Command)
        while True:
            try:
                command = decoder.decode(_receive(self._link))
            except (OSError, EOFError) as error:
                _perish(f"rank 0 of the learner is gone: {error}")
            self._arrived.put(command)
            if command.do == "end":
                return


def _perish(why: str) -> NoReturn:
    """End this process whatever its other threads do; what it was doing is replayed from the last checkpoint."""
    log.error("%s: this process ends", why)
    logging.shutdown()
    os._exit(1)


def _send(link: ssl.SSLSocket, message: Record) -> None:
    body = msgspec.msgpack.encode(message)
    link.sendall(_LENGTH.pack(len(body)) + body)


def _receive(link: ssl.SSLSocket, limit: int | None = None) -> bytearray:
    (length,) = _LENGTH.unpack(_exactly(link, _LENGTH.size))
    if limit is not None and length > limit:
        raise EOFError(f"a message of {length} bytes")
    return _exactly(link, length)


def _exactly(link: ssl.SSLSocket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        if not (got := link.recv_into(view)):
            raise EOFError("the connection ended")
        view = view[got:]
    return found


def _keep_alive(link: ssl.SSLSocket) -> None:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_NODE_MS)
