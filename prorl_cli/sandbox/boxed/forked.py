"""Boxes that are forks of the zygote, up at once: `Walled` behind namespaces of their own, `Plain` without walls.

A `Walled` zygote is pid 1 of bwrap's pid namespace and each box gets namespaces of its own, so the death of either
takes everything below with it. A `Plain` one adopts orphans and owns the boxes' folders. Called by `zygote`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import inside, isolation, tree
from prorl_cli.sandbox.boxed.forking import CLEAR_S
from prorl_cli.sandbox.boxed.kinds import Box
from prorl_cli.sandbox.boxed.supervisor import EXIT_CLOSED, leave
from prorl_cli.sandbox.boxed.tools import load_tools, rehearse
from prorl_cli.sandbox.boxed.watch import Limits

LEAVE_S = 0.5
"""How long a `process` box may take to leave when told, before its tree is killed."""


class _Forked:
    """What both kinds share."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._limits = Limits(**config["limits"])
        self._loaded = load_tools(config["tools"])
        self.tools = sorted(self._loaded)

    def prepare(self) -> None:
        rehearse(self._loaded)

    def make(self) -> Box:
        hand, theirs = socket.socketpair()
        with theirs:
            return Box(self._fork(theirs), hand)

    def _fork(self, hand: socket.socket) -> int:
        raise NotImplementedError

    def rise(self, box: Box) -> bool:
        return True

    def kill(self, box: Box) -> None:
        tree.kill(box.pid)


class Walled(_Forked):
    """Below bwrap."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._drop_root = config["drop_root"]

    def prepare(self) -> None:
        if self._drop_root:
            isolation.uncover_proc()
        super().prepare()

    def end(self, box: Box) -> None:
        """The first process of a pid namespace takes the rest along."""
        tree.kill(box.pid)

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        return status, ""

    def orphaned(self, living: Collection[int]) -> None:
        """It was in a namespace that has ended whole."""

    def leave(self, boxes: Collection[Box]) -> None:
        """The zygote's exit ends them."""

    def _fork(self, hand: socket.socket) -> int:
        """Two forks: the first enters the namespaces, the second is born into the new pid namespace as its pid 1.

        The first ends at once, so its child becomes the zygote's own (pid 1 of bwrap's namespace adopts it).
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        between = os.fork()
        if between == 0:
            with inside.exit_on_escape(hand):
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
            isolation.enter_namespaces(isolation.ALL_NAMESPACES, isolation.BOX_UID, isolation.BOX_UID)
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
        inside.serve(hand, self._loaded, self._limits, "/tmp")


class Plain(_Forked):
    """Without walls: the zygote finds and ends what a box leaves behind."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._own = Path(config["folder"])

    def prepare(self) -> None:
        isolation.adopt_orphans()
        super().prepare()

    def end(self, box: Box) -> None:
        """Its supervisor must clear its tree first."""
        box.leave_by = time.monotonic() + LEAVE_S

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        if status != EXIT_CLOSED:
            tree.kill_children(spare=living)  # what its supervisor could not clear is ours now
        shutil.rmtree(self._own / str(box.pid), ignore_errors=True)
        return status, ""

    def orphaned(self, living: Collection[int]) -> None:
        tree.kill_children(spare=living)  # an orphan's children are orphans now

    def leave(self, boxes: Collection[Box]) -> None:
        for box in boxes:
            os.kill(box.pid, signal.SIGTERM)
        tree.clear(CLEAR_S, patience_s=4 * LEAVE_S)
        shutil.rmtree(self._own, ignore_errors=True)

    def _fork(self, hand: socket.socket) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with inside.exit_on_escape(hand):
                signal.signal(signal.SIGTERM, lambda *_: leave())
                isolation.die_with_parent(parent, signal.SIGTERM)  # a SIGKILL would leave its tools' children behind
                os.setsid()
                isolation.adopt_orphans()
                own = f"{self._own}/{os.getpid()}"
                os.mkdir(own, 0o700)  # noqa: PTH102 - see `isolation._write`
                os.chdir(own)
                os.environ["HOME"] = os.environ["TMPDIR"] = own
                written = os.open(own, os.O_PATH | os.O_DIRECTORY)
                inside.serve(hand, self._loaded, self._limits, own, [written])
        return pid
