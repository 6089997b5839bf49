"""What a box's processes may use together, without root and without cgroups: looked at a few times a second.

`judge` decides purely which limit is passed and who has to go for it; `Watch` gathers the facts and ends them. Memory
is what the processes hold (shared pages counted once), not files in memory: those are bounded where they are mounted.
Called by the supervisor.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from prorl_cli.sandbox.boxed import processes, tree
from prorl_cli.sandbox.boxed.processes import Process

LOOK_S = 0.25
"""Between two looks while a call is in progress."""
IDLE_S = 1.0
"""The same between calls: a shell waits, or something goes on in the background."""
HASTE_S = 0.02
"""After a limit was hit: whoever was killed needs a moment to be gone."""
WALK_SHARE = 0.05
"""Most of the time that may go into adding up what was written."""


class Limits(NamedTuple):
    """Of one box: bytes of memory, seconds of `cpu` from first to last, `processes` at once, bytes on `disk`."""

    memory: int
    cpu: float
    processes: int
    disk: int


class Usage(NamedTuple):
    """What a look has found. `memory` and `disk` only need to be right near their limits."""

    living: Sequence[Process]
    memory: int
    cpu_s: float
    disk: float
    disk_grew: bool


class Passed(NamedTuple):
    """A limit was, and the processes `ended` had to go for it, of all that were `living`."""

    what: str
    ended: Collection[int]
    living: Sequence[Process]


def judge(usage: Usage, limits: Limits) -> str:
    """The limit that is passed, or nothing. A full disk that nothing fills further is no news: it can be tidied."""
    if usage.cpu_s >= limits.cpu:
        return "cpu"
    if usage.memory > limits.memory:
        return "memory"
    if usage.disk > limits.disk and usage.disk_grew:
        return "disk"
    return "processes" if len(usage.living) > limits.processes else ""


def victims(what: str, living: Sequence[Process], roots: Collection[int], size: dict[int, int]) -> set[int]:
    """Who has to go: for `cpu` all, for `processes` all but those that keep a session's state, else the one with the
    largest `size` (bytes it holds or has written) and what it has started."""
    everybody = {process.pid for process in living}
    if what == "cpu":
        return everybody
    if what == "processes":
        return everybody - set(roots)
    heaviest = max(everybody, key=lambda pid: size.get(pid, 0), default=0)
    return processes.branch(living, {heaviest}) if heaviest else set()


class Watch:
    """Over everything below this process. `written` are descriptors of the folders that count as disk, `device` is what
    files in them are on as the box sees it."""

    def __init__(self, limits: Limits, written: Sequence[int] = (), device: int = -1) -> None:
        self.limits = limits
        self._folders = written
        self._device = device
        self._reaped_s = 0.0
        self._disk: float = 0
        self._walk_at = 0.0
        self.due = math.inf

    def wake(self, now: float) -> None:
        """Something runs again, or may do so."""
        self.due = min(self.due, now + LOOK_S)

    def reaped(self, cpu_s: float) -> None:
        """A process has ended that used so much, with all that it had waited for."""
        self._reaped_s += cpu_s

    @property
    def cpu_left_s(self) -> float:
        """Not counting what still runs."""
        return max(0.0, self.limits.cpu - self._reaped_s)

    def look(self, now: float, roots: Collection[int], *, in_call: bool) -> Passed | None:
        """The limit that was passed, after what ran has been ended for it."""
        living = processes.below(os.getpid())
        usage = self._usage(living, now)
        what = judge(usage, self.limits)
        ended = self._end(what, living, roots) if what else set()
        pause_s = HASTE_S if what else LOOK_S if in_call else IDLE_S
        self.due = now + pause_s if living else math.inf
        return Passed(what, ended, living) if what else None

    def _usage(self, living: Sequence[Process], now: float) -> Usage:
        memory = sum(process.resident for process in living)
        if memory > self.limits.memory:  # only then worth the price
            memory = sum(processes.proportional(process.pid) or process.resident for process in living)
        before = self._disk
        if self._folders and now >= self._walk_at:
            self._walk(living)
        cpu_s = self._reaped_s + sum(process.cpu_s for process in living)
        return Usage(living=living, memory=memory, cpu_s=cpu_s, disk=self._disk, disk_grew=self._disk > before)

    def _walk(self, living: Sequence[Process]) -> None:
        began = time.monotonic()
        self._disk = sum(map(size_below, self._folders)) + self._deleted(living)
        ended = time.monotonic()
        self._walk_at = ended + (ended - began) / WALK_SHARE

    def _deleted(self, living: Sequence[Process]) -> int:
        """Bytes of files that are only held open."""
        found: dict[int, int] = {}
        for process in living:
            found |= processes.deleted(process.pid, self._device)
        return sum(found.values())

    def _end(self, what: str, living: Sequence[Process], roots: Collection[int]) -> set[int]:
        sizes = {process.pid: process.resident for process in living}
        if what == "disk":
            sizes = {process.pid: processes.written(process.pid) for process in living}
            self._disk = math.inf  # what was written until the end is no growth of whoever runs next
        ended = victims(what, living, roots, sizes)
        for pid in ended:
            tree.kill(pid)
        return ended


def size_below(folder: int) -> float:
    """Bytes on disk of everything below the folder open as `folder`. What cannot be read counts nothing; what lies too
    deep to be added up counts as more than any limit, or depth would hide it."""
    total, queue = 0, ["."]
    while queue:
        path = queue.pop()
        try:
            below = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return math.inf
            continue
        try:
            bytes_here, folders = _size_in(below)
        finally:
            os.close(below)
        total += bytes_here
        queue += [f"{path}/{name}" for name in folders]
    return total


def _size_in(folder: int) -> tuple[int, list[str]]:
    """Bytes of what lies in it, and its folders."""
    total, folders = 0, []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                total += found.st_blocks * 512
                if stat.S_ISDIR(found.st_mode):
                    folders.append(name)
    return total, folders
