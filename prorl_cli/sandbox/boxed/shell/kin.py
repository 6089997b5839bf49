"""Whose a process is: what a command has started, by the box's process list, and nothing that was there before it.

A daemon that left its session is the command's too, and a child that an earlier background job has now is not. The
list is read (`processes`, `mark`); the choice is pure. Called by `session`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """One line of the list; `started` in ticks since boot."""

    parent: int
    started: int


class Mark(NamedTuple):
    """A moment: the tick, and for those that start within it the last process number given out."""

    ticks: int
    pid: int

    def precedes(self, pid: int, process: Process) -> bool:
        """Whether the process started after this moment."""
        return process.started > self.ticks or (process.started == self.ticks and pid > self.pid)


def mark() -> Mark:
    """Now."""
    with open("/proc/loadavg", "rb") as file:
        pid = int(file.read().split()[-1])
    return Mark(int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS), pid)


def processes() -> dict[int, Process]:
    """All that live, dead ones that wait for their parent left out."""
    listed = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(name)):
            listed[int(name)] = process
    return listed


def _read(name: str) -> Process | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else Process(int(fields[1]), int(fields[19]))


def of_command(listed: Mapping[int, Process], first: int, shell: int, since: Mark) -> list[int]:
    """Those that started after `since` below `shell` (0: it is gone), or were orphaned to the box's `first` process."""

    def new(pid: int) -> bool:
        return pid in listed and pid not in (first, shell) and since.precedes(pid, listed[pid])

    def ancestor(pid: int) -> int:
        while new(pid):
            pid = listed[pid].parent
        return pid

    tops = {first, shell} - {0}  # 0: there is no shell; it is also the parent of those that were put into the box
    return [pid for pid in listed if new(pid) and ancestor(pid) in tops]


def below(listed: Mapping[int, Process], top: int) -> list[int]:
    """Every descendant of `top`."""
    found = [top]
    for ancestor in found:
        found += [pid for pid, process in listed.items() if process.parent == ancestor]
    return found[1:]


def send(pids: Iterable[int], number: int) -> None:
    """A signal to each that still exists; a stopped one is woken to hear it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            if number != signal.SIGKILL:
                os.kill(pid, signal.SIGCONT)
