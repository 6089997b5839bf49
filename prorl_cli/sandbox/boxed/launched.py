"""Boxes that a container runtime launches from an image: one long-lived `exec` each, which takes a moment to come up.

The box gets its hand as standard input, so no socket has a path, and it ends when that closes. The kernel tells the
box's first process by its first word. A launcher killed by force leaves its FUSE daemons behind: they become the
zygote's, which ends them. Called by `zygote`; the command line comes from the worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from prorl_cli import nodelocal
from prorl_cli.sandbox.boxed import isolation, processes, tree
from prorl_cli.sandbox.boxed.cloning import clone, ensure_folder
from prorl_cli.sandbox.boxed.forking import CLEAR_S
from prorl_cli.sandbox.boxed.gate import Gate, give_back
from prorl_cli.sandbox.boxed.kinds import Box
from prorl_cli.sandbox.boxed.removing import Removers
from prorl_cli.sandbox.boxed.supervisor import EXIT_CLOSED, EXIT_SETUP

START_S = 100.0
"""From launching a box until it is up (0.1–0.5 s on an idle machine); then it counts as stuck."""
LEAVE_S = 2.0
"""How long a box may take to leave and its launcher to unmount, before one after the other is killed."""

LAYER = "layer"
"""In a box's folder: what it writes, as the runtime keeps that (`upper` and `work`)."""

_CREDENTIALS = struct.Struct("3i")


BOX = "{BOX}"
"""In the words of the launch: the number of the box, whose folder is called that."""


class Launched:
    """By `launch`, a command with its `environment`, past the node's gate; with a folder each if boxes keep a `layer`
    on disk."""

    look_ms: int | None = None
    quiet_ms = haste_ms = 50  # to launch one takes a core for longer than that: the first action comes first

    def __init__(self, config: dict[str, Any]) -> None:
        self.note: str = config["note"]
        self.tools: list[str] = config["tools"]
        self._own = Path(config["folder"])
        self._command: list[str] = config["launch"]
        self._environment: dict[str, str] = config["environment"]
        self._layer: bool = config["layer"]
        self._worker: int = config["worker"]
        self._gate = Gate(config["gate"], config["widths"])
        self._made = 0
        self._removers = Removers()

    def prepare(self) -> None:
        isolation.die_with_parent(self._worker, signal.SIGTERM)
        isolation.adopt_orphans()

    def sound(self) -> bool:
        return True

    def make(self, like: str = "") -> Box | None:
        permit = self._gate.enter()
        if not permit:
            return None
        hand, theirs = socket.socketpair()
        hand.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        errors = os.memfd_create("errors")
        with theirs:
            try:
                folder = self._new_folder()
                pid = self._fork(theirs, errors, folder, like)
            except OSError:
                hand.close()
                os.close(errors)
                give_back(permit)
                raise
        leave_by = time.monotonic() + START_S
        return Box(pid, hand, up=False, errors=errors, leave_by=leave_by, folder=folder, permit=permit)

    def _new_folder(self) -> str:
        self._made += 1
        folder = self._own / str(self._made)
        if not self._layer:
            return ""
        (folder / LAYER).mkdir(parents=True)
        return str(folder)

    def _fork(self, hand: socket.socket, errors: int, folder: str, like: str) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_launcher(parent, hand, errors, folder, like)
        return pid

    def _become_launcher(self, parent: int, hand: socket.socket, errors: int, folder: str, like: str) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for changed in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(changed, signal.SIG_DFL)
            os.dup2(hand.fileno(), 0)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(errors, 2)
            os.closerange(3, 1 << 20)
            isolation.be_first_to_go()
            isolation.die_with_parent(parent, signal.SIGTERM)  # before it has mounted anything; it does not mind later
            if folder:
                _fill(f"{folder}/{LAYER}/upper", f"{like}/{LAYER}/upper" if like else "")
            command = [word.replace(BOX, str(self._made)) for word in self._command]
            os.execve(command[0], command, self._environment)
        except OSError as error:
            os.write(2, f"{self._command[0]}: {error}".encode())
        finally:
            os._exit(EXIT_SETUP)

    def rise(self, box: Box) -> bool:
        data, words, _, _ = box.hand.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
        if not data:
            return False
        box.inner = _CREDENTIALS.unpack(words[0][2])[0]
        box.leave_by = float("inf")
        return True

    def end(self, box: Box) -> None:
        """Its closed socket makes it leave, and its launcher then unmounts."""
        box.leave_by = time.monotonic() + LEAVE_S

    def kill(self, box: Box) -> None:
        """Its first process takes all others along; a launcher that stays even then goes the hard way."""
        if box.inner and processes.parent_of(box.inner) == box.pid:
            tree.kill(box.inner)
            box.inner = 0
            box.leave_by = time.monotonic() + LEAVE_S
        else:
            tree.kill(box.pid)

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        if status != EXIT_CLOSED:
            tree.kill_children(spare=self._removers.at_work.union(living))  # what a killed launcher held is ours now
        why = "" if box.up else f"its launcher ended: {_complaint(box.errors) or f'wait status {status}'}"
        os.close(box.errors)
        if box.folder:
            self._removers.remove(box.folder)
        return _of_first_process(status), why

    def orphaned(self, pid: int, living: Collection[int]) -> None:
        """It was ended when its launcher was buried, or has removed a box's folder."""
        self._removers.at_work.discard(pid)

    def leave(self, boxes: Collection[Box]) -> None:
        for box in boxes:
            box.hand.close()
        tree.clear(CLEAR_S, patience_s=LEAVE_S)
        self._gate.tidy()
        nodelocal.remove(self._own)


def _fill(upper: str, like: str) -> None:
    """What a box begins with. Its home is made here, for the image's /home may be another user's."""
    if like:
        clone(like, upper)
    ensure_folder(*os.path.split(upper))
    ensure_folder(upper, isolation.HOME)


def _of_first_process(status: int) -> int:
    """Some launchers say by their exit code which signal ended the box, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return code - 128 if code > 128 and code - 128 in set(signal.Signals) else status


def _complaint(errors: int) -> str:
    with contextlib.suppress(OSError):
        start = max(0, os.fstat(errors).st_size - 65536)
        return complaint(os.pread(errors, 65536, start).decode(errors="replace"))
    return ""


def complaint(said: str) -> str:
    """The line that says what went wrong; launchers go on talking after it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith(("FATAL", "ERROR"))]
    return (wrong or lines or [""])[-1][:500]
