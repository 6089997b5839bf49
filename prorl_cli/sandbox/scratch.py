"""The folders of `process` boxes on the node's own disk, and removing those whose zygote is gone.

A zygote makes, locks and removes its own; only when it was killed does one stay behind, until the next
`open_boxes` there. Refuses to touch a folder that is locked: its owner lives, in whatever container. Called by
`factory`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path


def sweep(scratch: Path) -> None:
    """Remove every `boxes-*` folder that no zygote holds locked."""
    for folder in scratch.glob("boxes-*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
        except OSError:
            continue  # gone meanwhile, or somebody else's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)
