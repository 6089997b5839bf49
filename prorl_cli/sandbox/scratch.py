"""What killed zygotes left on a node, removed at the next `open_boxes` there: folders, and mounts of images.

A zygote makes, locks and removes its own folder; only when it was killed does one stay behind. Refuses to touch a
folder that is locked, or a mount whose launcher lives: their owners are at work, in whatever container. Called by
`factory`.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from prorl_cli import nodelocal
from prorl_cli.sandbox.parent import PREFIX

_SERVES_MOUNTS = frozenset(["squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs"])
_SESSION = "/mnt/session/"
"""Below it Apptainer and Singularity mount an image, each box in a namespace of its own."""


def sweep(scratch: Path) -> None:
    """Remove every zygote's folder that no zygote holds locked."""
    nodelocal.sweep(scratch, PREFIX)


def sweep_mounts() -> None:
    """End FUSE daemons of this user whose launcher was killed together with its zygote: they serve no box any more."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _serves_nobody(process):
                process.kill()


def _serves_nobody(process: psutil.Process) -> bool:
    if process.name() not in _SERVES_MOUNTS or process.uids().real != os.getuid():
        return False
    launcher = process.parent()
    if launcher is not None and launcher.name().startswith("starter"):
        return False
    return any(_SESSION in word for word in process.cmdline())
