"""What killed workers left on a node, removed when the next one begins and when it ends: processes, mounts, folders.

A zygote ends its boxes and removes its folder itself; only what was killed together with it stays behind. Refuses to
touch anything whose folder is locked, for then its owner is at work, in whatever container, and any process that is not
this user's. Called by `factory`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from prorl_cli import nodelocal
from prorl_cli.sandbox.boxed.gate import Gate
from prorl_cli.sandbox.parent import GATES, PREFIX

_SETTLE_S = 5.0
"""For a killed process to be gone; a mount goes with its daemon."""


def clean(scratch: Path) -> None:
    """End what is left of zygotes below `scratch` that are no more, then remove their folders."""
    for folder in nodelocal.abandoned(scratch, PREFIX):
        _end(scratch, folder.samefile)
        nodelocal.remove(folder)
    _end(scratch, lambda home: not home.exists())  # others have removed it
    Gate(str(scratch / GATES), {}).tidy()


def _end(scratch: Path, dead: Callable[[Path], bool]) -> None:
    killed = []
    for process, home in _boxed(scratch):
        with contextlib.suppress(psutil.Error, OSError):
            if dead(home):
                process.kill()  # psutil looks at its start time first: who has its pid by now is spared
                killed.append(process)
    psutil.wait_procs(killed, timeout=_SETTLE_S)


def _boxed(scratch: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """Processes of this user that were started by a zygote, with its folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == os.getuid() and (home := _home(process, scratch)):
                yield process, home


def _home(process: psutil.Process, scratch: Path) -> Path | None:
    """A zygote and its forks are told by their last word, what they execute by its environment: launchers and their
    FUSE daemons, tools' programs."""
    words = process.cmdline()
    named = words[-1:] if any("zygote.main()" in word for word in words) else []
    with contextlib.suppress(psutil.AccessDenied):  # who serves a box cannot be read
        environment = process.environ()
        named += [environment.get("HOME", ""), environment.get("TMPDIR", "")]
    for path in map(Path, named):
        if path.is_relative_to(scratch) and path != scratch:
            first = scratch / path.relative_to(scratch).parts[0]
            return first if first.name.startswith(PREFIX) else None
    return None
