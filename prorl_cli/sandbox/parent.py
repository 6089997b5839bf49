"""The worker's end of one zygote: starts it, asks it for boxes, hears how they end, knows when it is gone.

Refuses to start boxes once the zygote is lost: `factory` then launches another. Everything runs in the caller's
event loop, one descriptor and no thread a box.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil

from prorl_cli import nodelocal
from prorl_cli.errors import InfraError, UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import root
from prorl_cli.sandbox.boxed.launched import complaint
from prorl_cli.sandbox.results import Ended
from prorl_cli.sandbox.runtimes import Runtime, Zygote
from prorl_cli.trajectory import ErrorClass

log = logging.getLogger(__name__)

BOOT_S = 100.0
"""For a zygote to come up (0.1 s on an idle machine, but its image may be far away)."""
LEAVE_S = 15.0
"""For a zygote to take its boxes down when told (it gives up after 10), before it is killed itself."""

PREFIX = "boxes-"
"""Of the folders in which zygotes keep what their boxes write to the node's disk."""

GATES = "gates"
"""Folder of the node's gate (`boxed.gate`), beside them."""

LOST = "went with its parent process (the zygote)"


class Parent:
    """One zygote, from `Parent.launch` to `close`; `tools` are the names it serves, `note` what it found this node to
    refuse, `lost` once it has ended.

    A box of its answers within `ready_s`.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        errors: IO[bytes],
        own: nodelocal.Private | None,
        ready_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._control = control
        self._errors = errors
        self._own = own
        self._numbers = 0
        self._ends: dict[int, Callable[[Ended], None]] = {}
        self._greeting: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.tools: frozenset[str] = frozenset()
        self.note = ""
        self.ready_s = ready_s
        self.lost = False

    @classmethod
    async def launch(cls, runtime: Runtime, sandbox: Sandbox, scratch: Path) -> Parent:
        """Start a zygote and wait until it is warm. Raises `UserError` with its own words where it cannot start."""
        _take_all_descriptors()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, contextlib.ExitStack() as undo:
            undo.enter_context(ours)
            errors = undo.enter_context(tempfile.TemporaryFile())
            own = await asyncio.to_thread(_own_folder, scratch) if runtime.writes else None
            undo.callback(_give_up, own)
            zygote = await asyncio.to_thread(runtime.zygote, own.folder if own else None)
            parent = cls(_spawn(zygote, theirs, errors), ours, errors, own, runtime.ready_s)
            undo.pop_all()
        try:
            await parent._greet(_configuration(zygote.kind, sandbox, own) | zygote.facts)
        except BaseException:
            parent.kill()
            raise
        return parent

    async def _greet(self, configuration: dict[str, Any]) -> None:
        """Configure it, and hand it the lock on its folder."""
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._hear)
        locks = [self._own.lock] if self._own else []
        with contextlib.suppress(OSError):  # it died at once: the reader says so
            socket.send_fds(self._control, [json.dumps(configuration).encode()], locks)
        for lock in locks:
            os.close(lock)
        try:
            async with asyncio.timeout(BOOT_S):
                greeting = await self._greeting
        except TimeoutError:
            raise UserError(f"the boxes' parent process did not come up within {BOOT_S:g} s") from None
        self.tools = frozenset(greeting["tools"])
        self.note = greeting["note"]
        if self.note:
            log.warning("boxes: %s", self.note)

    def _hear(self) -> None:
        try:
            data = self._control.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
        elif not self._greeting.done():
            self._greeting.set_result(json.loads(data))
        else:
            notice = msgspec.json.decode(data, type=Ended)
            if end := self._ends.pop(notice.ended, None):
                end(notice)

    def _lose(self) -> None:
        """The zygote is gone, or is to go: so are its boxes."""
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._control)
        if not self._greeting.done():
            self._greeting.set_exception(UserError(f"boxes cannot be started: {self.last_words}"))
        for number, end in self._ends.items():
            end(Ended(number, 0, LOST))
        self._ends.clear()
        self._control.close()

    @property
    def last_words(self) -> str:
        """What the zygote, or who launched it, complained of."""
        said = os.pread(self._errors.fileno(), 65536, max(0, os.fstat(self._errors.fileno()).st_size - 65536))
        return complaint(said.decode(errors="replace")) or "the parent process ended without a word"

    async def begin(self, link: socket.socket, ended: Callable[[Ended], None], like: int = 0) -> int:
        """Ask for a box that speaks over `link` and begins with what box `like` has written; `ended` is called once.
        Returns its number. Raises `InfraError`."""
        self._numbers += 1
        number = self._numbers
        self._ends[number] = ended
        message = json.dumps({"start": number, "like": like}).encode()
        while not self.lost:
            try:
                socket.send_fds(self._control, [message], [link.fileno()])
                return number
            except BlockingIOError:
                await self._room()
            except ConnectionError:
                self._lose()
            except OSError as error:  # too many descriptors are on their way, say: not the zygote's fault
                del self._ends[number]
                raise InfraError(ErrorClass.SANDBOX, f"no box: {error}") from error
        raise InfraError(ErrorClass.SANDBOX, "no box: its parent process (the zygote) is gone")

    async def _room(self) -> None:
        """Wait for the zygote to take messages in; other callers may wait as well, so not by the loop's one writer."""
        await asyncio.sleep(0.001)

    def end(self, number: int) -> None:
        """Have a box killed, without waiting; nothing where it has ended."""
        if number in self._ends and not self.lost:
            with contextlib.suppress(OSError):  # full: the box's closed socket ends it, too
                self._control.send(json.dumps({"end": number}).encode())

    async def close(self) -> None:
        """Take everything down and wait for it; twice is fine."""
        self._lose()
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """`close`, waiting for it here: a closed control socket makes the zygote end its boxes and leave."""
        self._lose()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            _kill_tree(self._process.pid)
            self._process.wait()
        self._errors.close()
        if self._own:
            nodelocal.remove(self._own.folder)


def _take_all_descriptors() -> None:
    """A box may have fewer on their way than its worker, or it could keep that from sending any (`boxed.isolation`)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _kill_tree(pid: int) -> None:
    """The zygote below bwrap does not hear of bwrap's death while it is stopped."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (*top.children(), top):
            process.kill()


def _spawn(zygote: Zygote, control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own (Ctrl-C is the worker's), with no environment of the worker's and one descriptor."""
    return subprocess.Popen(
        zygote.command,
        env=dict(zygote.environment),
        cwd="/",
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,
    )


def _own_folder(scratch: Path) -> nodelocal.Private:
    try:
        return nodelocal.make(scratch, PREFIX)
    except OSError as error:
        raise UserError(f"boxes cannot be started: {error}") from error


def _give_up(own: nodelocal.Private | None) -> None:
    if own:
        nodelocal.remove(own.folder)
        os.close(own.lock)


def _configuration(kind: str, sandbox: Sandbox, own: nodelocal.Private | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "limits": root.limits_of(sandbox),
        "folder": str(own.folder) if own else "",
        "name": own.folder.name if own else "",
        "worker": os.getpid(),
    }
