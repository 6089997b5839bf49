"""A private folder on a node's own disk: locked while its owner lives, swept by whoever comes next after a kill.

The lock is the kernel's, so it goes with the last process that holds its descriptor, however that ends; a shared
filesystem needs other means (`fsio`). Refuses to touch a folder that is locked. Called by `sandbox` (by
boxes, too), `engine` and `images`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Private:
    """`lock` is a descriptor: the folder is in use until every copy of it is closed."""

    folder: Path
    lock: int


def make(base: Path, prefix: str) -> Private:
    """A new folder below `base` that only this user can read, locked."""
    while True:
        base.mkdir(parents=True, exist_ok=True)
        folder = base / f"{prefix}{os.urandom(4).hex()}"  # `tempfile` would bring all of OpenSSL into every box
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # swept before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return Private(folder=folder, lock=lock)
            os.close(lock)


def abandoned(base: Path, prefix: str) -> Iterator[Path]:
    """Folders that nobody holds; each is locked while the caller has it."""
    for folder in base.glob(f"{prefix}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or somebody else's
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def settle(descriptor: int) -> None:
    """Everything written to the disk of an open file is there for good."""
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
        raise OSError(ctypes.get_errno(), "syncfs")


def sweep(base: Path, prefix: str) -> None:
    """Remove every folder that nobody holds."""
    for folder in abandoned(base, prefix):
        remove(folder)


def remove(folder: Path) -> None:
    """With all that is in it, whatever its modes: who worked there may have closed folders to himself."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if folder.is_dir():
            _dismantle(folder)


def _dismantle(folder: Path) -> None:
    """Level by level: the folders of each are moved up before it goes, so no depth is too much for stack or path."""
    folder.chmod(0o700)
    while entries := list(folder.iterdir()):
        for entry in entries:
            if _is_folder(entry):
                _empty_into(folder, entry)
            else:
                entry.unlink()
    folder.rmdir()


def _empty_into(top: Path, folder: Path) -> None:
    folder.chmod(0o700)
    for entry in list(folder.iterdir()):
        if _is_folder(entry):
            entry.chmod(0o700)  # who moves a folder changes what is its parent
            entry.rename(top / os.urandom(8).hex())
        else:
            entry.unlink()
    folder.rmdir()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
