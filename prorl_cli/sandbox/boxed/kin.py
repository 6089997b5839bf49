"""Whose a process is: what a call has started, by the box's process list, and nothing that was there before it.

A daemon that left its session is the call's too, and a child that an earlier background job has now is not. The moment
is read (`mark`); the choice is pure. Called by the supervisor and by the session of bash.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

from prorl_cli.sandbox.boxed.processes import TICKS, Process


class Mark(NamedTuple):
    """A moment: the tick, and for those that start within it the last process number given out."""

    ticks: int
    pid: int

    def precedes(self, process: Process) -> bool:
        """Whether the process started after this moment."""
        return process.started > self.ticks or (process.started == self.ticks and process.pid > self.pid)


def mark() -> Mark:
    """Now."""
    with open("/proc/loadavg", "rb") as file:
        pid = int(file.read().split()[-1])
    return Mark(int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS), pid)


def of_call(living: Iterable[Process], first: int, root: int, since: Mark) -> list[int]:
    """Those that started after `since` below `root`, which keeps its session's state (0: none does), or below the box's
    `first` process, orphaned to it or not."""
    listed = {process.pid: process for process in living}

    def new(pid: int) -> bool:
        return pid in listed and pid not in (first, root) and since.precedes(listed[pid])

    def ancestor(pid: int) -> int:
        while new(pid):
            pid = listed[pid].parent
        return pid

    tops = {first, root} - {0}  # 0 is also the parent of those that were put into the box
    return [pid for pid in listed if new(pid) and ancestor(pid) in tops]


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each that still exists; a stopped one is woken to hear it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)
