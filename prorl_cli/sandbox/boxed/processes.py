"""Processes as /proc shows them, which nobody else reads; refuses nothing: who ends while it is read is left out.

Called by whoever in a box, or beside it, must know what else runs there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
"""Of the clock by which the kernel tells the birth of a process, a second."""


class Process(NamedTuple):
    """`resident` bytes, shared ones included; `cpu_s` of itself and of all children that it has waited for; `started`
    in ticks since boot."""

    pid: int
    parent: int
    session: int
    resident: int
    cpu_s: float
    started: int


def living() -> list[Process]:
    """All that can be seen; dead ones that wait for their parent are left out."""
    return [process for entry in os.listdir("/proc") if entry.isdigit() and (process := read(entry))]


def below(root: int) -> list[Process]:
    """Every living descendant of process `root`."""
    found = living()
    wanted = branch(found, {root})
    return [process for process in found if process.pid in wanted and process.pid != root]


def branch(processes: Iterable[Process], roots: Collection[int]) -> set[int]:
    """The pids `roots` and all below them."""
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    found, queue = set(roots), list(roots)
    while queue:
        new = [pid for pid in children.get(queue.pop(), ()) if pid not in found]
        found.update(new)
        queue += new
    return found


def read(pid: int | str) -> Process | None:
    """One of them; None where it has ended. One whose first thread has ended looks dead and goes on in the others."""
    fields = _stat(pid)
    dead = not fields or fields[0] in "ZX"
    if not fields or (dead and int(fields[17]) < 2):
        return None
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        session=int(fields[3]),
        resident=(_resident(pid) if dead else int(fields[21])) * _PAGE,
        cpu_s=sum(map(int, fields[11:15])) / TICKS,
        started=int(fields[19]),
    )


def _resident(pid: int | str) -> int:
    """Pages, as its threads tell them."""
    return max((int(_text_of(thread, "statm").split()[1]) for thread in _threads(pid)), default=0)


def parent_of(pid: int) -> int:
    """Its parent, which a dead one has until it is waited for; 0 where it is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int | str) -> list[str]:
    """Of its line all behind its name, which may hold anything."""
    return _text_of(pid, "stat").rpartition(")")[2].split()


def proportional(pid: int) -> int:
    """Resident bytes in which a page that n processes share counts 1/n; 0 where the kernel does not say."""
    for line in _text_of(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def written(pid: int) -> int:
    """Bytes that it has written to anything."""
    for line in _text_of(pid, "io").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def deleted(pid: int, device: int) -> dict[int, int]:
    """Files of a device that have no name any more and that it holds open: inode, and bytes on disk. None of a process
    that made itself unreadable."""
    found = {}
    for thread in _threads(pid):
        for name in _names(f"/proc/{thread}/fd"):
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{thread}/fd/{name}")  # noqa: PTH116 - see `isolation._write`
                if file.st_dev == device:
                    found[file.st_ino] = _nameless(f"/proc/{thread}/fd/{name}", file)
    return found


def _nameless(link: str, file: os.stat_result) -> int:
    """Bytes of a file on disk if it has no name; a FUSE daemon may go on telling of one, but not of its blocks."""
    if not file.st_nlink:
        return file.st_blocks * 512
    untold = not file.st_blocks and os.readlink(link).endswith(" (deleted)")  # noqa: PTH115 - see `isolation._write`
    return file.st_size if untold else 0


def _threads(pid: int | str) -> list[str]:
    """Their folders in /proc."""
    return [f"{pid}/task/{number}" for number in _names(f"/proc/{pid}/task")]


def _names(folder: str) -> list[str]:
    """In a folder; none where that is gone or not ours to read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text_of(pid: int | str, name: str) -> str:
    """A file of its folder in /proc; empty where it has ended or is not ours to read."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
