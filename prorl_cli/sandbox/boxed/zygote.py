"""The warmed parent: forks a box for each `start`, reports how each one ended, takes all down when the worker goes.

Speaks JSON datagrams with the worker over a socket pair (SOCK_SEQPACKET; end of file = the worker is gone):

    → {"runtime", "limits", "tools", …}   once                 ← {"tools": [...], "folder": str}
    → {"start": n} with the box's socket                       ← {"ended": n, "status": wait status, "why": str}
    → {"end": n}

In `bwrap` it is pid 1 of bwrap's pid namespace and each box gets namespaces of its own, so the death of either
takes everything below with it. In `process` it adopts orphans and owns the boxes' folders. Two boxes are forked
ahead of need. Started by `parent`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import math
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import isolation, tree
from prorl_cli.sandbox.boxed.frames import pack
from prorl_cli.sandbox.boxed.supervisor import CLEAR_S, EXIT_CLOSED, EXIT_SETUP, Limits, Supervisor, leave
from prorl_cli.sandbox.boxed.tools import Tool, load_tools, rehearse

CONTROL = 3
SPARES = 2
"""Boxes forked ahead of need."""
QUIET_MS = 10
"""Without a message for that long, a further spare is forked: not while a box just started wants the processor."""
HASTE_MS = 1
"""The same where no spare is left: starts come back to back, and the next one would wait for a whole fork."""
LEAVE_S = 0.5
"""How long a `process` box may take to leave when told, before its tree is killed."""


@dataclass(slots=True)
class _Box:
    """A forked box; `hand` is how it is given its socket, `number` 0 while it is a spare."""

    pid: int
    hand: socket.socket
    number: int = 0
    leave_by: float = math.inf


class Zygote:
    """Serves one worker; `runtime` is "bwrap" or "process"."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self._control = control
        self._walled = config["runtime"] == "bwrap"
        self._drop_root = config["drop_root"]
        self._limits = Limits(**config["limits"])
        self._tools: dict[str, Tool] = load_tools(config["tools"])
        self._folder: Path | None = None
        if not self._walled:
            self._folder, self._lock = _private_folder(config["scratch"])
        self._boxes: dict[int, _Box] = {}
        self._spares: deque[_Box] = deque()
        self._wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.leave())

    def serve(self) -> NoReturn:
        """Until the worker closes its end; exits the process."""
        if self._drop_root:
            isolation.uncover_proc()
        elif not self._walled:
            isolation.adopt_orphans()
        rehearse(self._tools)
        gc.collect()
        gc.freeze()
        self._say({"tools": sorted(self._tools), "folder": str(self._folder or "")})
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        while True:
            self._turn({fd for fd, _ in poller.poll(self._patience_ms())})

    def _patience_ms(self) -> int | None:
        if len(self._spares) < SPARES:
            return QUIET_MS if self._spares else HASTE_MS
        return None if all(box.leave_by == math.inf for box in self._boxes.values()) else 100

    def _turn(self, ready: set[int]) -> None:
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        self._reap()
        if CONTROL in ready:
            self._command()
        for box in self._boxes.values():
            if time.monotonic() > box.leave_by:
                tree.kill(box.pid)
        if not ready and len(self._spares) < SPARES:
            with contextlib.suppress(OSError):  # the next start asks again, and says so
                self._spares.append(self._fork())

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self.leave()

    def _command(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65536, 1)
        except ConnectionResetError:  # killed before it read all that was said to it
            data, fds = b"", []
        if not data:
            self.leave()
        message = json.loads(data)
        if "start" in message:
            self._start(message["start"], fds[0])
        else:
            self._end(message["end"])

    def _start(self, number: int, fd: int) -> None:
        try:
            box = self._spares.popleft() if self._spares else self._fork()
            box.number = number
            with box.hand, contextlib.suppress(OSError):  # a spare that died: its end is told in its turn
                socket.send_fds(box.hand, [b"."], [fd])
        except OSError as error:
            self._say({"ended": number, "status": 0, "why": f"could not be forked: {error}"})
        finally:
            os.close(fd)

    def _end(self, number: int) -> None:
        """The first process of a pid namespace takes the rest along; elsewhere the supervisor must clear its tree."""
        for box in self._boxes.values():
            if box.number == number and self._walled:
                tree.kill(box.pid)
            elif box.number == number:
                box.leave_by = time.monotonic() + LEAVE_S

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if box := self._boxes.pop(ended[0], None):
                    self._bury(box, ended[1])
                elif self._folder:
                    tree.kill_children(spare=self._boxes)  # an orphan's children are orphans now

    def _bury(self, box: _Box, status: int) -> None:
        if self._folder:
            if status != EXIT_CLOSED:
                tree.kill_children(spare=self._boxes)  # what its supervisor could not clear is ours now
            shutil.rmtree(self._folder / str(box.pid), ignore_errors=True)
        if box in self._spares:
            self._spares.remove(box)
        else:
            self._say({"ended": box.number, "status": status, "why": ""})

    def leave(self) -> NoReturn:
        """Worker gone: nothing may stay behind. Exits the process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # end of file and death signal come together: once is enough
        if self._folder:
            for pid in self._boxes:
                os.kill(pid, signal.SIGTERM)
            tree.clear(CLEAR_S, patience_s=4 * LEAVE_S)
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)

    def _fork(self) -> _Box:
        hand, theirs = socket.socketpair()
        with theirs:
            pid = self._fork_walled(theirs) if self._walled else self._fork_plain(theirs)
        self._boxes[pid] = _Box(pid, hand)
        return self._boxes[pid]

    def _fork_plain(self, hand: socket.socket) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with _exit_on_escape(hand):
                signal.signal(signal.SIGTERM, lambda *_: leave())
                isolation.die_with_parent(parent, signal.SIGTERM)  # a SIGKILL would leave its tools' children behind
                os.setsid()
                isolation.adopt_orphans()
                assert self._folder
                own = f"{self._folder}/{os.getpid()}"
                os.mkdir(own, 0o700)  # noqa: PTH102 - see `isolation._write`
                os.chdir(own)
                os.environ["HOME"] = os.environ["TMPDIR"] = own
                self._serve(hand)
        return pid

    def _fork_walled(self, hand: socket.socket) -> int:
        """Two forks: the first enters the namespaces, the second is born into the new pid namespace as its pid 1.

        The first ends at once, so its child becomes the zygote's own (pid 1 of bwrap's namespace adopts it).
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        between = os.fork()
        if between == 0:
            with _exit_on_escape(hand):
                self._enter(write_end)
                self._furnish(hand)
        os.close(write_end)
        answer = os.read(read_end, 32)  # not to the end of file: the box holds the other end, too
        os.close(read_end)
        if int(answer or 0) != between:
            os.waitpid(between, 0)
        if not answer:
            raise OSError("its first process was killed")
        return int(answer)

    def _enter(self, report: int) -> None:
        """Returns as pid 1 of the box; `report` tells the zygote which process is the box: this one, if refused."""
        try:
            if self._drop_root:
                isolation.become_nobody()
            isolation.enter_namespaces()
            pid = os.fork()
        except OSError:
            os.write(report, str(os.getpid()).encode())
            raise
        if pid:
            os.write(report, str(pid).encode())
            os._exit(0)

    def _furnish(self, hand: socket.socket) -> NoReturn:
        isolation.furnish(self._limits.memory)
        os.setsid()
        isolation.limit_processes(self._limits.processes)
        isolation.drop_capabilities()
        self._serve(hand)

    def _serve(self, hand: socket.socket) -> NoReturn:
        hand = _only_descriptor(hand)
        isolation.be_first_to_go()
        isolation.forbid_new_privileges()
        isolation.set_dumpable(False)
        Supervisor(_take_link(hand), self._tools, self._limits).serve()


def _private_folder(scratch: str) -> tuple[Path, int]:
    """A folder of this zygote's own, and the lock on it that says so for as long as it lives (see `scratch.sweep`)."""
    while True:
        Path(scratch).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="boxes-", dir=scratch))
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, lock
            os.close(lock)


@contextlib.contextmanager
def _exit_on_escape(hand: socket.socket) -> Any:
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
    return socket.socket(fileno=fds[0])


def _only_descriptor(hand: socket.socket) -> socket.socket:
    """Close all but this one (as 3) and three /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.dup2(hand.detach(), CONTROL)
    os.closerange(CONTROL + 1, 1 << 20)
    return socket.socket(fileno=CONTROL)


def main() -> NoReturn:
    """`python -c BOOT FOLDER DESCRIPTOR`: take the configuration from the worker's socket and serve it."""
    os.dup2(int(sys.argv[2]), CONTROL)
    os.closerange(CONTROL + 1, 1 << 20)
    os.environ.pop("LD_LIBRARY_PATH", None)
    control = socket.socket(fileno=CONTROL)
    data = control.recv(65536)
    if not data:
        sys.exit(0)
    config = json.loads(data)
    if config["runtime"] == "process":
        isolation.die_with_parent(config["worker"], signal.SIGTERM)
    zygote = Zygote(control, config)
    try:
        zygote.serve()
    finally:
        traceback.print_exc()
        zygote.leave()
