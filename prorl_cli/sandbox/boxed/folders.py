"""A zygote's own folder on the node's disk, locked for as long as it lives (see `scratch.sweep`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path


def private_folder(scratch: str) -> tuple[Path, int]:
    """The folder, and the lock on it."""
    while True:
        Path(scratch).mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="boxes-", dir=scratch))
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, lock
            os.close(lock)
