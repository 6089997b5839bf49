"""Lets only so many boxes of a node be on their way at once, and only so many of one image, whoever starts them.

A permit is a lock on one of a few files in a folder of the node, which goes with the process that holds it: there is
nothing to give back after a kill. Never waits: who finds it full asks again. Called by `launched`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path


class Gate:
    """`widths`: name of a file in `folder`, and how many may pass at once by that name; a permit is one of each."""

    def __init__(self, folder: str, widths: Mapping[str, int]) -> None:
        self._folder = Path(folder)
        self._widths = widths
        self._given: list[list[int]] = []

    def enter(self) -> list[int]:
        """Descriptors, to be closed once the box is up; none where it is full."""
        held: list[int] = []
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, width in self._widths.items():
            permit = self._one_of([self._folder / f"{name}-{number}" for number in range(width)])
            if permit < 0:
                give_back(held)
                return []
            held.append(permit)
        self._given = [permit for permit in self._given if permit] + [held]
        return held

    def _one_of(self, files: list[Path]) -> int:
        return next((permit for file in files if (permit := _locked(file)) >= 0), -1)

    def tidy(self) -> None:
        """Give back all, and remove the files that nobody holds."""
        for permit in self._given:
            give_back(permit)
        with contextlib.suppress(OSError):
            for file in self._folder.iterdir():
                if (lock := _locked(file)) >= 0:
                    file.unlink()
                    os.close(lock)
            self._folder.rmdir()


def give_back(permit: list[int]) -> None:
    """Let go of its locks, whoever has a copy of them by a fork; twice is fine."""
    while permit:
        descriptor = permit.pop()
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(file: Path) -> int:
    """A descriptor; -1 where somebody else holds it, or has just removed it."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return -1
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), file.stat()):
            return descriptor
    os.close(descriptor)
    return -1
