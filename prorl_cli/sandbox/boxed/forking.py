"""A call of a tool that keeps no state: a child that runs it under its limits and says its result through a pipe.

Refuses a second life: a child that escapes its tool exits. Called by the supervisor.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from prorl_cli.sandbox.boxed import processes, tool_run, tree
from prorl_cli.sandbox.boxed.calls import Result
from prorl_cli.sandbox.boxed.frames import Frames
from prorl_cli.sandbox.boxed.tools import Run

EXIT_OWN_DOING = 71
"""Of the box: the policy's processes could not be brought to an end."""

CLEAR_S = 10.0
"""How long killing what a tool left behind may take; milliseconds, unless the node is swamped."""


class ForkedCall:
    """`become` makes the child a tool's process: limits, no way back to the worker. It is `alone` where the box holds
    no session: then whatever is left after it can be ended."""

    def __init__(
        self, run: Run, arguments: dict[str, Any], timeout_s: float, become: Callable[[], None], *, alone: bool
    ) -> None:
        self.result: Result | None = None
        self._alone = alone
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._frames = Frames()
        self._status: int | None = None
        self._pipe, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_end, True)
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._pipe)
            os.close(write_end)
            raise
        if self._pid == 0:
            try:
                become()
                os.dup2(write_end, 3)
                os.closerange(4, 1 << 20)
                tool_run.run(run, arguments, 3)
            finally:
                os._exit(1)  # whatever escapes must not go on as a second supervisor
        os.close(write_end)
        self._piped = True

    def descriptors(self) -> tuple[int, ...]:
        return (self._pipe,) if self._piped else ()

    def ready(self, descriptor: int) -> None:
        self._take()

    def _take(self) -> bool:
        """Read on in the child's pipe; False where nothing is there now."""
        try:
            data = os.read(self._pipe, 65536)
            for body in self._frames.feed(data):
                self.result = self.result or tool_run.checked(json.loads(body))
        except BlockingIOError:
            return False
        except ValueError:  # a tool that speaks past its runner has no result
            data = b""
        self._piped = bool(data) and self.result is None
        return True

    def ended(self, pid: int, status: int) -> None:
        if pid != self._pid:
            return
        self._status = status
        while self._piped and self._take():
            pass
        self.result = self.result or tool_run.verdict(status)

    def wake_at(self) -> float:
        return self._deadline if self.result is None else math.inf

    def tick(self, now: float) -> None:
        self.result = self.result or tool_run.timed_out(self._timeout_s)

    def limited(self, what: str) -> None:
        self.result = self.result or tool_run.limited(what)

    def settle(self) -> None:
        """End the child and all it started."""
        os.close(self._pipe)
        if self._alone:
            if not tree.clear(CLEAR_S):
                os._exit(EXIT_OWN_DOING)
        else:
            self._end_branch()

    def _end_branch(self) -> None:
        """As far as it did not hide in a session of its own, which only prorl's own tools could."""
        give_up = time.monotonic() + CLEAR_S
        while (mine := self._living()) and time.monotonic() < give_up:
            for pid in mine:
                tree.kill(pid)
            time.sleep(0.0005)  # whoever was killed needs a moment to be gone

    def _living(self) -> set[int]:
        own = os.getpid()
        living = processes.below(own)
        sessions = {process.pid for process in living if process.session == self._pid}
        return processes.branch(living, {self._pid} | sessions) & {process.pid for process in living}
