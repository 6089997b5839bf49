"""What one build may use of this node: the processors and the memory that were given to this job, not the node's.

Called by `build`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.images.program import Share

_CGROUPS = Path("/sys/fs/cgroup")
_MOST = 4 << 30
"""Bytes that packing profits from."""


def share_here(at_once: int) -> Share:
    """Of one of so many builds; together they get half of the memory that is free for this process."""
    free = min([_available(), *_limits(Path("/proc/self/cgroup").read_text())])
    processors = max(len(os.sched_getaffinity(0)) // at_once, 1)
    return Share(processors=processors, memory=min(free // 2 // at_once, _MOST))


def _available() -> int:
    facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(facts["MemAvailable"].split()[0]) * 1024


def _limits(said: str) -> Iterator[int]:
    """The memory limits of every cgroup above this process, of either version."""
    for line in said.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        here = top / path.lstrip("/")
        for folder in (here, *here.parents):
            try:
                value = (folder / name).read_text().strip()
            except OSError:
                continue
            if value.isdigit():
                yield int(value)
