"""The first process of a box: takes calls from the worker's socket one at a time and runs each in a child.

It answers every call exactly once, with the call's id; it survives whatever its tools do, or exits with a code
that says why. It refuses nothing: the worker decides which tools may be asked for. Forked by the zygote.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import isolation, tool_run, tree
from prorl_cli.sandbox.boxed.frames import Frames, pack
from prorl_cli.sandbox.boxed.tools import Tool

EXIT_CLOSED, EXIT_SETUP, EXIT_OWN_DOING = 0, 70, 71
"""Told to go; could not be set up; the policy's processes could not be brought to an end."""

CLEAR_S = 10.0
"""How long killing what a tool left behind may take; milliseconds, unless the node is swamped."""

_PEER_GONE = select.POLLHUP | select.POLLERR


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one box: `memory` bytes a process, `cpu` seconds of all its calls together, `processes` at once."""

    memory: int
    cpu: float
    processes: int


@dataclass(slots=True, kw_only=True)
class _Child:
    """A running tool call: its process, the pipe of its result, what came through it, how it ended."""

    pid: int
    pipe: int
    cpu_limit: int
    frames: Frames = field(default_factory=Frames)
    result: tool_run.Result | None = None
    piped: bool = True
    status: int | None = None
    cpu_used: float = 0.0


def leave() -> NoReturn:
    """Worker or zygote are gone: end what runs, then this process."""
    tree.clear(CLEAR_S)
    os._exit(EXIT_CLOSED)


class Supervisor:
    """Serves one box over `link` until the worker closes it."""

    def __init__(self, link: socket.socket, tools: dict[str, Tool], limits: Limits) -> None:
        self._link = link
        self._tools = tools
        self._limits = limits
        self._cpu_spent = 0.0
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        """Answer calls for ever; exits the process."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        self._send({"id": 0, "outcome": "ready"})
        incoming = Frames()
        while data := self._hear():
            for body in incoming.feed(data):
                self._answer(json.loads(body))
        os._exit(EXIT_CLOSED)

    def _hear(self) -> bytes:
        try:
            return self._link.recv(65536)
        except ConnectionResetError:  # closed before it read all that was said to it
            return b""

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(pack(message))
        except OSError:
            leave()

    def _answer(self, call: dict[str, Any]) -> None:
        left = self._limits.cpu - self._cpu_spent
        if left <= 0:
            self._send({"id": call["id"], **tool_run.limited("cpu")})
            return
        child = self._spawn(self._tools[call["tool"]], call["arguments"], math.ceil(left))
        result = self._watch(child, time.monotonic() + call["timeout_s"]) or tool_run.timed_out(call["timeout_s"])
        self._send({"id": call["id"], **result})
        self._clear(child)

    def _spawn(self, tool: Tool, arguments: dict[str, Any], cpu_limit: int) -> _Child:
        parent = os.getpid()
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_end, True)
        pid = os.fork()
        if pid == 0:
            try:
                self._become_tool(parent, write_end, cpu_limit)
                tool_run.run(tool, arguments, 3)
            finally:
                os._exit(1)  # whatever escapes must not go on as a second supervisor
        os.close(write_end)
        return _Child(pid=pid, pipe=read_end, cpu_limit=cpu_limit)

    def _become_tool(self, parent: int, write_end: int, cpu_limit: int) -> None:
        """In the child: no way back to the worker's socket, no open file but the result pipe (as 3)."""
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(handled, signal.SIG_DFL)
        isolation.die_with_parent(parent)
        os.setsid()
        os.dup2(write_end, 3)
        os.closerange(4, 1 << 20)
        isolation.set_dumpable(True)
        isolation.limit_tool(self._limits.memory, cpu_limit)

    def _watch(self, child: _Child, deadline: float) -> tool_run.Result | None:
        """What the child said, or what its ending says; None when the deadline passed before either."""
        while child.result is None and child.status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._listen(child, left)
            self._reap(child, os.WNOHANG)
        while child.piped and self._take(child):
            pass
        return child.result or tool_run.verdict(child.status or 0, child.cpu_used, child.cpu_limit)

    def _listen(self, child: _Child, left: float) -> None:
        poller = select.poll()
        poller.register(self._link, 0)
        poller.register(self._wake_r, select.POLLIN)
        if child.piped:
            poller.register(child.pipe, select.POLLIN)
        for fd, event in poller.poll(math.ceil(left * 1000)):
            if fd == self._link.fileno() and event & _PEER_GONE:
                leave()
            elif fd == self._wake_r:
                os.read(self._wake_r, 4096)
            elif fd == child.pipe:
                self._take(child)

    def _take(self, child: _Child) -> bool:
        """Read on in the child's pipe; False where nothing is there now."""
        try:
            data = os.read(child.pipe, 65536)
            for body in child.frames.feed(data):
                child.result = child.result or tool_run.checked(json.loads(body))
        except BlockingIOError:
            return False
        except ValueError:  # a tool that speaks past its runner has no result
            data = b""
        child.piped = bool(data) and child.result is None
        return True

    def _reap(self, child: _Child, flags: int) -> None:
        pid, status, usage = os.wait4(child.pid, flags)
        if pid:
            child.status = status
            child.cpu_used = usage.ru_utime + usage.ru_stime
            self._cpu_spent += child.cpu_used

    def _clear(self, child: _Child) -> None:
        """After the answer: end the child and all it started, so that the next call finds an empty box."""
        os.close(child.pipe)
        if child.status is None:
            tree.kill(child.pid)
            self._reap(child, 0)
        if not tree.clear(CLEAR_S):
            os._exit(EXIT_OWN_DOING)
