"""The last steps of a box before it serves: one descriptor, first in line for the out-of-memory killer, unreadable.

Runs as the box's first process. Waits for the socket to the worker; exits where whoever should hand it over goes
first. Called by `forked` and `furnished`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NoReturn

from prorl_cli.sandbox.boxed import isolation
from prorl_cli.sandbox.boxed.frames import pack
from prorl_cli.sandbox.boxed.supervisor import EXIT_SETUP, Supervisor
from prorl_cli.sandbox.boxed.watch import Limits, Watch

LINK = 3


def serve(
    hand: socket.socket,
    tools: dict[str, ModuleType],
    limits: Limits,
    home: str,
    private: str,
    written: Sequence[int] = (),
) -> NoReturn:
    """Serve whoever's socket comes through `hand`. The policy's work begins in `home`, tools keep their own files in
    `private`, and the folders open as `written` count as disk."""
    hand, written = _only_descriptors(hand, written)
    isolation.be_first_to_go()
    isolation.limit_descriptors()
    isolation.forbid_new_privileges()
    isolation.set_dumpable(False)
    watch = Watch(limits, written, _device_of_files(home) if written else -1)
    Supervisor(_take_link(hand), tools, watch, home, private).serve()


def _device_of_files(home: str) -> int:
    """By trial: an overlay of several filesystems shows its files on a device that is none of theirs."""
    trial = f"{home}/{os.urandom(8).hex()}"
    descriptor = os.open(trial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    os.unlink(trial)  # noqa: PTH108 - see `isolation._write`
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exit_on_escape(hand: socket.socket) -> Iterator[None]:
    """In a forked child: whatever goes wrong is said over the box's socket, and the process ends here."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    try:
        yield
    except BaseException as error:  # noqa: BLE001 - a child must never return into the zygote's loop
        with contextlib.suppress(OSError):
            link = _take_link(hand)
            link.sendall(pack({"id": 0, "outcome": "broken", "output": f"{type(error).__name__}: {error}"}))
        os._exit(EXIT_SETUP)


def _take_link(hand: socket.socket) -> socket.socket:
    """Wait to be given the socket to the worker; exits where the zygote goes first."""
    with hand:
        data, fds, _, _ = socket.recv_fds(hand, 1, 1)
    if not data:
        os._exit(0)
    os.set_inheritable(fds[0], False)  # Python's recv_fds forgets its flags: a program could speak for the box
    return socket.socket(fileno=fds[0])


def _only_descriptors(hand: socket.socket, written: Sequence[int]) -> tuple[socket.socket, Sequence[int]]:
    """Close all but these (from 3 on) and three /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (hand.detach(), *written)]  # out of each other's way
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for number, fd in enumerate(kept):
        os.dup2(fd, LINK + number, inheritable=False)
    os.closerange(LINK + len(kept), 1 << 20)
    return socket.socket(fileno=LINK), range(LINK + 1, LINK + len(kept))
