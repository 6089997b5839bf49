"""The first process of a box: takes calls from the worker's socket one at a time and drives each to its answer.

It answers every call exactly once, with the call's id; it survives whatever its tools do, or exits with a code
that says why. It alone polls, reaps, keeps time and watches over the limits. It refuses nothing: the worker decides
which tools may be asked for. Started by the box's kind (`inside`).
"""

from __future__ import annotations

import functools
import json
import math
import os
import select
import signal
import socket
import time
from collections import deque
from types import ModuleType
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import isolation, kin, tool_run, tree
from prorl_cli.sandbox.boxed.answered import Answered
from prorl_cli.sandbox.boxed.calls import Call, Result, Session, Setting
from prorl_cli.sandbox.boxed.forking import CLEAR_S, ForkedCall
from prorl_cli.sandbox.boxed.frames import Frames, pack
from prorl_cli.sandbox.boxed.watch import Passed, Watch

EXIT_CLOSED, EXIT_SETUP = 0, 70
"""Told to go; could not be set up."""


def leave() -> NoReturn:
    """Worker or zygote are gone: end what runs, then this process."""
    tree.clear(CLEAR_S)
    os._exit(EXIT_CLOSED)


class Supervisor:
    """Serves one box over `link` until the worker closes it."""

    def __init__(
        self, link: socket.socket, tools: dict[str, ModuleType], watch: Watch, home: str, private: str
    ) -> None:
        self._link = link
        self._tools = tools
        self._watch = watch
        self._home, self._private = home, private
        self._incoming = Frames()
        self._asked: deque[dict[str, Any]] = deque()
        self._call: Call | None = None
        self._answering: dict[str, Any] = {}
        self._since = kin.mark()
        self._sessions: dict[str, Session] = {}
        self._passed_in_background = ""
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> NoReturn:
        """Answer calls for ever; exits the process."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        self._send({"id": 0, "outcome": "ready"})
        while True:
            self._turn()

    # ── one turn ──────────────────────────────────────────────────────────────────────────────────────────

    def _turn(self) -> None:
        ready = self._wait()
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
            self._reap()
        self._listen(ready)
        now = time.monotonic()
        if now >= self._watch.due:
            self._look(now)
        if self._call and self._call.result is None and now >= self._call.wake_at():
            self._call.tick(now)
        self._answer_when_done()
        while self._asked and not self._call:
            self._begin(self._asked.popleft())
            self._answer_when_done()

    def _wait(self) -> set[int]:
        """Descriptors that have something to read. While a call is in progress no further one is taken in."""
        poller = select.poll()
        poller.register(self._link, 0 if self._call else select.POLLIN)
        for descriptor in (self._wake_r, *self._heard()):
            poller.register(descriptor, select.POLLIN)
        events = poller.poll(self._patience_ms())
        if any(fd == self._link.fileno() and event & (select.POLLHUP | select.POLLERR) for fd, event in events):
            leave()
        return {fd for fd, _ in events}

    def _heard(self) -> dict[int, Call | Session]:
        """Who wants to hear which descriptor. A session in a call hears through the call."""
        speakers: list[Call | Session] = [s for s in self._sessions.values() if s is not self._session_in_call]
        if self._call:
            speakers.append(self._call)
        return {fd: speaker for speaker in speakers for fd in speaker.descriptors()}

    @property
    def _session_in_call(self) -> Session | None:
        return self._sessions.get(self._answering["tool"]) if self._call else None

    def _patience_ms(self) -> int | None:
        until = min(self._watch.due, self._call.wake_at() if self._call else math.inf)
        return None if until == math.inf else max(0, math.ceil((until - time.monotonic()) * 1000))

    def _listen(self, ready: set[int]) -> None:
        for fd, speaker in self._heard().items():
            if fd in ready:
                speaker.ready(fd)
        if not self._call and self._link.fileno() in ready:
            self._hear()

    def _hear(self) -> None:
        try:
            data = self._link.recv(65536)
        except ConnectionResetError:  # closed before it read all that was said to it
            data = b""
        if not data:
            leave()
        self._asked += (json.loads(body) for body in self._incoming.feed(data))

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._watch.reaped(usage.ru_utime + usage.ru_stime)
            if self._call and not self._watch.cpu_left_s:
                self._call.limited("cpu")
            for session in self._sessions.values():
                if session is not self._session_in_call:
                    session.ended(pid, status)
            if self._call:
                self._call.ended(pid, status)

    def _look(self, now: float) -> None:
        roots = [session.root for session in self._sessions.values() if session.root]
        passed = self._watch.look(now, roots, in_call=self._call is not None)
        if passed and self._call and self._is_of_call(passed):
            self._call.limited(passed.what)
        elif passed:
            self._passed_in_background = passed.what

    def _is_of_call(self, passed: Passed) -> bool:
        """Whether anything of the call in progress had to go, or it could not be told what had to."""
        root = self._session_in_call.root if self._session_in_call else 0
        own = {root, *kin.of_call(passed.living, os.getpid(), root, self._since)}
        return not passed.ended or not own.isdisjoint(passed.ended)

    # ── a call ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, asked: dict[str, Any]) -> None:
        if refusal := self._refusal(asked["tool"]):
            self._send({"id": asked["id"], **refusal})
            return
        self._answering = asked
        self._since = kin.mark()
        try:
            self._call = self._called(asked)
        except OSError as error:
            self._call = Answered.for_want(error)
        self._watch.wake(time.monotonic())

    def _refusal(self, tool: str) -> Result | None:
        """Why a call is not even begun. What ran between the policy's calls, or beside one, is told to its next one."""
        if not self._watch.cpu_left_s:
            return tool_run.limited("cpu")
        what = "" if tool.startswith("_") else self._passed_in_background
        if not what:
            return None
        self._passed_in_background = ""
        return tool_run.limited(what, "what ran in the background was ended, and this call was not begun")

    def _called(self, asked: dict[str, Any]) -> Call:
        tool, name, timeout_s = self._tools[asked["tool"]], asked["tool"], asked["timeout_s"]
        if hasattr(tool, "run"):
            become = functools.partial(self._become, os.getpid(), self._watch.limits.memory)
            return ForkedCall(tool.run, asked["arguments"], timeout_s, become, alone=not self._sessions)
        if name not in self._sessions:
            become = functools.partial(self._become, os.getpid(), 0)
            self._sessions[name] = tool.open_session(Setting(home=self._home, private=self._private, become=become))
        return self._sessions[name].call(asked["arguments"], time.monotonic() + timeout_s)

    def _become(self, parent: int, memory: int) -> None:
        """In a child that is to be the policy's: what it was told here no longer holds, the box's limits do."""
        signal.set_wakeup_fd(-1)
        for handled in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(handled, signal.SIG_DFL)
        isolation.die_with_parent(parent)
        os.setsid()
        isolation.set_dumpable(True)
        isolation.limit_tool(memory, math.ceil(self._watch.cpu_left_s))

    def _answer_when_done(self) -> None:
        if not self._call or self._call.result is None:
            return
        call, result = self._call, self._call.result
        self._send({"id": self._answering["id"], **result})
        if result.get("outcome") == "limit:cpu":  # the kernel counts finer than it tells
            self._watch.reaped(self._watch.cpu_left_s)
        call.settle()
        self._call = None

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(pack(message))
        except OSError:
            leave()
