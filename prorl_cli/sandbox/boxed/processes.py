"""The processes below this one, as /proc shows them; refuses nothing: who ends while it is read is left out.

Called by `watch` and `forking`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """`resident` bytes, shared ones included; `cpu_s` of itself and of all children that it has waited for."""

    pid: int
    parent: int
    session: int
    resident: int
    cpu_s: float


def below(root: int) -> list[Process]:
    """Every living descendant of process `root`."""
    found = [process for entry in os.listdir("/proc") if entry.isdigit() and (process := _read(entry))]
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


def _read(pid: str) -> Process | None:
    text = text_of(pid, "stat")
    fields = text.rpartition(")")[2].split()
    if not fields or fields[0] in "ZX":
        return None
    cpu = sum(map(int, fields[11:15])) / _TICKS
    resident = int(fields[21]) * _PAGE
    return Process(pid=int(pid), parent=int(fields[1]), session=int(fields[3]), resident=resident, cpu_s=cpu)


def proportional(pid: int) -> int:
    """Resident bytes in which a page that n processes share counts 1/n; 0 where the kernel does not say."""
    for line in text_of(pid, "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def written(pid: int) -> int:
    """Bytes that it has written to anything."""
    for line in text_of(pid, "io").splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


def text_of(pid: int | str, name: str) -> str:
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
