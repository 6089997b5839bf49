"""What killed workers left on a node, removed when the next one begins and when it ends: processes, mounts, folders.

A zygote ends its boxes and removes its folder itself; only what was killed together with it stays behind. Refuses to
touch anything whose folder is locked, for then its owner is at work, in whatever container, and any process that is not
this user's. Called by `factory`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from prorl_cli import nodelocal
from prorl_cli.sandbox.boxed.gate import Gate
from prorl_cli.sandbox.parent import GATES, PREFIX

_SETTLE_S = 5.0
"""For a killed process to be gone; a mount goes with its daemon."""

_SERVES_MOUNTS = frozenset(["squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs"])
_SESSION = "/mnt/session/"
"""Below it Apptainer and Singularity mount an image, each box in a namespace of its own."""


def clean(scratch: Path) -> None:
    """End what is left of zygotes below `scratch` that are no more, then remove their folders."""
    for folder in nodelocal.abandoned(scratch, PREFIX):
        _kill(process for process, home in _boxed(scratch) if home == folder)
        nodelocal.remove(folder)
    # Others have removed it; another job with a `/tmp` of its own has it where we cannot see.
    _kill(process for process, home in _boxed(scratch) if not home.exists() and _sees(process, scratch))
    _kill(filter(_serves_nobody, _own()))
    Gate(str(scratch / GATES), {}).tidy()


def _sees(process: psutil.Process, folder: Path) -> bool:
    """Whether a folder of ours is the same one to a process."""
    with contextlib.suppress(OSError):
        return os.path.samestat(Path(f"/proc/{process.pid}/root{folder}").stat(), folder.stat())
    return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    killed = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()  # psutil looks at its start time first: who has its pid by now is spared
            killed.append(process)
    psutil.wait_procs(killed, timeout=_SETTLE_S)


def _own() -> Iterator[psutil.Process]:
    """Processes of this user."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                yield process


def _serves_nobody(process: psutil.Process) -> bool:
    """Whether it is a FUSE daemon whose launcher was killed: it has nothing of its box about it but a mount point."""
    with contextlib.suppress(psutil.Error):
        if process.name() in _SERVES_MOUNTS and any(_SESSION in word for word in process.cmdline()):
            launcher = process.parent()
            return launcher is None or not launcher.name().startswith("starter")
    return False


def _boxed(scratch: Path) -> Iterator[tuple[psutil.Process, Path]]:
    """Those that were started by a zygote, with its folder."""
    known = re.compile(re.escape(f"{scratch}/{PREFIX}") + r"[0-9a-f]+")
    for process in _own():
        with contextlib.suppress(psutil.Error):
            if home := next(filter(None, map(known.match, _folders(process))), None):
                yield process, Path(home[0])


def _folders(process: psutil.Process) -> list[str]:
    """What may be a zygote's folder or below it. A zygote and its forks are told by their last word, what they execute
    by its environment: launchers, and programs of tools."""
    words = process.cmdline()
    named = words[-1:] if any("zygote.main()" in word for word in words) else []
    with contextlib.suppress(psutil.AccessDenied):  # who serves a box cannot be read
        environment = process.environ()
        named += [environment.get(name, "") for name in ("HOME", "TMPDIR")]
    return named
