"""Boxes that are forks of the zygote, up at once: `Walled` behind namespaces of their own, `Plain` without walls.

A `Walled` zygote is pid 1 of bwrap's pid namespace and each box gets namespaces of its own, so the death of either
takes everything below with it. A `Plain` one adopts orphans and owns the boxes' folders. Called by `zygote`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from prorl_cli import nodelocal
from prorl_cli.sandbox.boxed import inside, isolation, rooted, tree
from prorl_cli.sandbox.boxed.forking import CLEAR_S
from prorl_cli.sandbox.boxed.kinds import Box
from prorl_cli.sandbox.boxed.removing import Removers
from prorl_cli.sandbox.boxed.rooted import Root
from prorl_cli.sandbox.boxed.supervisor import EXIT_CLOSED, leave
from prorl_cli.sandbox.boxed.tools import load_tools, rehearse
from prorl_cli.sandbox.boxed.watch import Limits

LEAVE_S = 0.5
"""How long a `process` box may take to leave when told, before its tree is killed."""


class _Forked:
    """What both kinds share."""

    note = ""
    quiet_ms, haste_ms = 10, 1
    look_ms: int | None = None

    def __init__(self, config: dict[str, Any]) -> None:
        self._limits = Limits(**config["limits"])
        self._loaded = load_tools(config["serve"], config["tools"])
        self.tools = sorted(self._loaded.paths)
        self._made = 0

    def prepare(self) -> None:
        rehearse(self._loaded)

    def sound(self) -> bool:
        return True

    def make(self, like: str = "") -> Box:
        self._made += 1
        hand, theirs = socket.socketpair()
        with theirs:
            return Box(self._fork(theirs, like), hand)

    def _fork(self, hand: socket.socket, like: str) -> int:
        raise NotImplementedError

    def rise(self, box: Box) -> bool:
        return True

    def kill(self, box: Box) -> None:
        tree.kill(box.pid)


class Walled(_Forked):
    """Below bwrap, with a folder in the zygote's each where they have a root of their own."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        os.environ.pop("LD_LIBRARY_PATH", None)  # by which bwrap has it find its own
        self._drop_root = config["drop_root"]
        self._root = Root(**config["root"]) if config["root"] else None
        self._in_memory = False
        self._trash = f"{rooted.SCRATCH}/{config['name']}"
        self._removers = Removers(self._become_user)

    def prepare(self) -> None:
        if self._drop_root:
            isolation.uncover_proc()
        if self._root:
            isolation.die_with_parent(0, signal.SIGTERM)  # its folder is to be removed
            if why := self._refused(self._root):
                self._do_without(why)
        super().prepare()

    def _do_without(self, why: str) -> None:
        """An overlay."""
        self.note = f"no overlay ({why}): boxes can write only to memory"
        self._in_memory = True

    def _refused(self, root: Root) -> str:
        """Why boxes cannot write to the node's disk, if they cannot: tried once."""
        own = f"{rooted.NODE}/trial"
        read_end, write_end = os.pipe()
        trial = os.fork()
        if trial == 0:
            try:
                self._become_user()
                isolation.enter_namespaces(isolation.ALL_NAMESPACES, isolation.BOX_UID, isolation.BOX_UID)
                rooted.lay(root, own)
            except BaseException as error:  # noqa: BLE001 - a child must never return into the zygote
                os.write(write_end, str(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        with open(read_end) as words:
            why = words.read()
        os.waitpid(trial, 0)
        self._removers.remove(own)
        return why

    def make(self, like: str = "") -> Box:
        box = super().make(like)
        box.folder = f"{rooted.NODE}/{self._made}" if self._root and not self._in_memory else ""
        return box

    def end(self, box: Box) -> None:
        """The first process of a pid namespace takes the rest along."""
        tree.kill(box.pid)

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        if box.folder:
            self._removers.remove(box.folder)
        return status, ""

    def orphaned(self, pid: int, living: Collection[int]) -> None:
        """It was in a namespace that has ended whole, or has removed a box's folder."""
        self._removers.at_work.discard(pid)

    def leave(self, boxes: Collection[Box]) -> None:
        """The zygote's exit ends them; what they wrote is removed before."""
        if not self._root:
            return
        tree.clear(CLEAR_S)  # all children: one may have been on its way when the word came
        if remover := self._removers.remove(rooted.NODE):  # else the worker removes it
            os.waitpid(remover, 0)
            with contextlib.suppress(OSError):
                os.rmdir(self._trash)  # noqa: PTH106 - see `isolation._write`

    def _become_user(self) -> None:
        """Whom a box belongs to, and all that it wrote."""
        if self._drop_root:
            isolation.become_nobody()

    def _fork(self, hand: socket.socket, like: str) -> int:
        """Two forks: the first enters the namespaces, the second is born into the new pid namespace as its pid 1.

        The first ends at once, so its child becomes the zygote's own (pid 1 of bwrap's namespace adopts it).
        """
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        between = os.fork()
        if between == 0:
            with inside.exit_on_escape(hand):
                self._enter(write_end)
                self._furnish(hand, like)
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
            self._become_user()
            isolation.enter_namespaces(isolation.ALL_NAMESPACES, isolation.BOX_UID, isolation.BOX_UID)
            pid = os.fork()
        except OSError:
            os.write(report, str(os.getpid()).encode())
            raise
        if pid:
            os.write(report, str(pid).encode())
            os._exit(0)

    def _furnish(self, hand: socket.socket, like: str) -> NoReturn:
        home, private, written = self._own_root(self._root, like) if self._root else self._shared_root()
        os.setsid()
        isolation.limit_processes(self._limits.processes)
        isolation.drop_capabilities()
        inside.serve(hand, self._loaded, self._limits, home, private, written)

    def _shared_root(self) -> tuple[str, str, list[int]]:
        isolation.furnish(self._limits.memory)
        return "/tmp", "/tmp", []

    def _own_root(self, root: Root, like: str) -> tuple[str, str, list[int]]:
        isolation.keep_mounts_private()
        written = []
        if self._in_memory:
            rooted.lay_in_memory(root, self._limits.memory)
        else:
            own = f"{rooted.NODE}/{self._made}"
            rooted.lay(root, own, like)
            written.append(os.open(f"{own}/upper", os.O_PATH | os.O_DIRECTORY))
        rooted.move_in(root, self._limits.memory)
        isolation.settle(isolation.HOME)
        os.environ.update({"HOME": isolation.HOME, "TMPDIR": "/tmp"})
        return isolation.HOME, rooted.PRIVATE, written


class Plain(_Forked):
    """Without walls: the zygote finds and ends what a box leaves behind."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._worker: int = config["worker"]
        self._own: str = config["folder"]
        self._homes: dict[int, str] = {}
        self._removers = Removers()

    def prepare(self) -> None:
        isolation.die_with_parent(self._worker, signal.SIGTERM)
        isolation.adopt_orphans()
        super().prepare()

    def end(self, box: Box) -> None:
        """Its supervisor must clear its tree first."""
        box.leave_by = time.monotonic() + LEAVE_S

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        if status != EXIT_CLOSED:
            self._kill_orphans(living)  # what its supervisor could not clear is ours now
        self._removers.remove(self._homes.pop(box.pid))
        return status, ""

    def orphaned(self, pid: int, living: Collection[int]) -> None:
        if pid in self._removers.at_work:
            self._removers.at_work.discard(pid)
        else:
            self._kill_orphans(living)  # an orphan's children are orphans now

    def _kill_orphans(self, living: Collection[int]) -> None:
        tree.kill_children(spare=self._removers.at_work.union(living))

    def leave(self, boxes: Collection[Box]) -> None:
        for box in boxes:
            os.kill(box.pid, signal.SIGTERM)
        tree.clear(CLEAR_S, patience_s=4 * LEAVE_S)
        nodelocal.remove(Path(self._own))

    def make(self, like: str = "") -> Box:
        box = super().make(like)
        self._homes[box.pid] = self._home()
        return box

    def _home(self) -> str:
        """Of the box that is made now; by number, for a process's may be used again before its folder is removed."""
        return f"{self._own}/{self._made}"

    def _fork(self, hand: socket.socket, like: str) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            with inside.exit_on_escape(hand):
                signal.signal(signal.SIGTERM, lambda *_: leave())
                isolation.die_with_parent(parent, signal.SIGTERM)  # a SIGKILL would leave its tools' children behind
                os.setsid()
                isolation.adopt_orphans()
                own = self._home()
                os.mkdir(own, 0o700)  # noqa: PTH102 - see `isolation._write`
                os.chdir(own)
                os.environ["HOME"] = os.environ["TMPDIR"] = own
                written = os.open(own, os.O_PATH | os.O_DIRECTORY)
                inside.serve(hand, self._loaded, self._limits, home=own, private=own, written=[written])
        return pid
