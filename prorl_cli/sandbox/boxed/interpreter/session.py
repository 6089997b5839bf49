"""The stateful python as a session of the box: starts a worker when needed, runs a cell in it, sees how it ends.

Past its deadline a cell is interrupted, a second later its programs are, and after another one the worker is killed;
the partial output is the answer. Whatever a cell does to its worker is an event that the next call survives. Refuses
to wait: it is called by the supervisor's loop.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from typing import Any

from prorl_cli.sandbox.boxed import tool_run, tree
from prorl_cli.sandbox.boxed.bounded import Bounded
from prorl_cli.sandbox.boxed.calls import Result, Setting
from prorl_cli.sandbox.boxed.interpreter.child import Answer, Child

STAGES_S = 0.0, 1.0, 2.0, 4.0
"""After the deadline: a cell is interrupted; its programs are, too; its worker is killed; nobody waits any more."""

_FLUSH_S = 0.002
"""Between two tries to send a long cell to a worker that takes its time to read it."""

_USAGE = 'the arguments must be {"code": "..."}, or {"restart": true} with or without code'

_ON_REQUEST = "was restarted"

_TICK_S = 0.01
"""To how much the kernel tells the birth of a process."""


class PythonSession:
    """`child` is the worker that keeps the state, if one lives; `lost` says how one ended between two calls."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._of_image = True
        self._number = 0
        self._output = Bounded()
        self.child: Child | None = None
        self.lost = ""

    @property
    def root(self) -> int:
        return self.child.pid if self.child else 0

    def call(self, arguments: dict[str, Any], deadline: float) -> CellCall:
        self._number += 1
        return CellCall(self, self._number, arguments, deadline)

    def descriptors(self) -> list[int]:
        return self.child.descriptors() if self.child else []

    def ready(self, descriptor: int) -> None:
        if self.child:
            self.child.ready(descriptor)

    def ended(self, pid: int, status: int) -> None:
        if self.child and self.child.pid == pid:
            self.lost = f"{_ending(status)} since the last call"
            self.bury()

    def start(self) -> Child:
        """The worker, a new one if none lives. Raises `OSError`."""
        if not self.child:
            self.child = Child(self._setting, lambda data: self._output.feed(data), of_image=self._of_image)
        return self.child

    def bury(self) -> None:
        """The worker has ended, or does not even die."""
        if self.child:
            self.child.drain()
            self.child.close()
        self.child = None

    def without_image(self) -> bool:
        """Where the image has no Python, or one older than 3.8, prorl's own takes its place; whether it now does."""
        changed, self._of_image = self._of_image, False
        if changed:
            self._output = Bounded()
        return changed

    def take_output(self) -> Bounded:
        """All that was said since the last time."""
        output, self._output = self._output, Bounded()
        return output


class CellCall:
    """One cell, from its text to its answer."""

    def __init__(self, session: PythonSession, number: int, arguments: dict[str, Any], deadline: float) -> None:
        self.result: Result | None = None
        self._session = session
        self._number = number
        self._seconds = deadline - time.monotonic()
        self._ending_at = deadline
        self._stage = 0
        self._cut = ""
        self._sent = False
        self._flushed_at = 0.0
        self._began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._restarted = ""
        self._code = arguments.get("code") or ""
        if not _understood(arguments):
            self.result = {"outcome": "error", "output": f"error: {_USAGE}"}
            return
        self._restarted, session.lost = session.lost, ""
        if arguments.get("restart") and session.child:
            session.child.kill()
            session.bury()
            self._restarted = _ON_REQUEST
        self._begin()

    def _begin(self) -> None:
        try:
            self._session.start()
        except OSError as error:
            limit = tool_run.limit_of(error)
            self._finish(f"limit:{limit}" if limit else "error", f"no interpreter could be started: {error.strerror}")
        else:
            self._advance()

    def descriptors(self) -> list[int]:
        return self._session.descriptors()

    def ready(self, descriptor: int) -> None:
        self._session.ready(descriptor)
        self._advance()

    def _advance(self) -> None:
        child = self._session.child
        if not child or self.result is not None:
            return
        if child.nonsense:
            child.kill()
        elif child.up and not self._sent:
            self._sent = True
            child.send(self._number, self._code)
        elif child.answer and child.answer.number == self._number:
            child.drain()
            self._answered(child.answer)

    def _answered(self, answer: Answer) -> None:
        facts = {"cwd": answer.folder}
        if answer.kind == "raised":
            facts["error"] = answer.detail
        if self._cut:
            self._finish(self._cut, self._why_cut(), **facts)
        elif answer.kind == "exit":
            note = f"exit code {answer.detail}; the session goes on"
            self._finish("ok" if answer.detail == "0" else "error", note, exit_code=_number(answer.detail), **facts)
        else:
            self._finish("ok" if answer.kind == "ok" else "error", **facts)

    def ended(self, pid: int, status: int) -> None:
        child = self._session.child
        if not child or child.pid != pid or self.result is not None:
            self._session.ended(pid, status)
            return
        self._session.bury()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            self._cut = "limit:cpu"
        if not child.up and os.WIFEXITED(status) and not self._cut and self._session.without_image():
            self._begin()
        else:
            self._lose(_ending(status), _death_facts(status))

    def _lose(self, how: str, facts: dict[str, Any]) -> None:
        what = f"the interpreter {how}; the next call has a new one, without its variables"
        note = f"{self._why_cut()}; {what}" if self._cut else what
        self._finish(self._cut or "error", note, **facts, restarted=True)

    def wake_at(self) -> float:
        if self.result is not None:
            return 0.0
        due = self._ending_at + STAGES_S[self._stage]
        child = self._session.child
        return min(due, self._flushed_at + _FLUSH_S) if child and child.pending else due

    def tick(self, now: float) -> None:
        child = self._session.child
        if child:
            child.flush()
            self._flushed_at = now
        if now < self._ending_at + STAGES_S[self._stage]:
            return
        self._stage += 1
        self._cut = self._cut or "timeout"
        if not child or not self._sent:
            self._finish(self._cut, "the interpreter was still being started: the cell was not run")
        elif self._stage < 3:
            child.interrupt(since=self._began - _TICK_S if self._stage == 2 else math.inf)
        elif self._stage == 3:
            child.kill()
        else:
            self._session.bury()
            self._lose("could not be ended", {})

    def limited(self, what: str) -> None:
        if self.result is None:
            self._cut = f"limit:{what}"
            self._ending_at, self._stage = time.monotonic(), 0
            self.tick(self._ending_at)

    def settle(self) -> None:
        """What an unfinished cell started ends; where its worker is lost, the next one begins to come up."""
        child = self._session.child
        if self._cut and self._sent and child:
            for pid in child.started(since=self._began - _TICK_S):
                tree.kill(pid)
        if self._cut == "timeout" or not self._cut:
            with contextlib.suppress(OSError):
                self._session.start()

    def _why_cut(self) -> str:
        if self._cut == "timeout":
            return f"interrupted: not finished within {self._seconds:.3g} s"
        return f"interrupted: the box reached its limit of {self._cut.partition(':')[2]}"

    def _finish(self, outcome: str, note: str = "", **facts: Any) -> None:
        output = self._session.take_output()
        text = output.text()
        if self._restarted:
            text = f"[the interpreter {self._restarted}: its variables are gone]\n{text}"
            facts["restarted"] = True
        if note:
            text += ("\n" if text and not text.endswith("\n") else "") + f"[{note}]"
        if output.omitted:
            facts["omitted"] = output.omitted
        self.result = {"outcome": outcome, "output": text, "facts": facts}


def _understood(arguments: dict[str, Any]) -> bool:
    code, restart = arguments.get("code"), arguments.get("restart", False)
    known = arguments.keys() <= {"code", "restart"} and isinstance(restart, bool)
    return known and (isinstance(code, str) or (code is None and restart))


def _number(digits: str) -> int:
    return int(digits) if digits.isdecimal() else 1


def _ending(status: int) -> str:
    if os.WIFEXITED(status):
        return f"exited with code {os.WEXITSTATUS(status)}"
    return f"died of {_signal_name(status)}"


def _death_facts(status: int) -> dict[str, Any]:
    return {"exit_code": os.WEXITSTATUS(status)} if os.WIFEXITED(status) else {"signal": _signal_name(status)}


def _signal_name(status: int) -> str:
    return tool_run.signal_name(os.WTERMSIG(status))
