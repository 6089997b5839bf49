"""The files that hold a shell's state, so that another can take it over; refuses one that was not written to its end.

After every command the shell writes one of two in turn, and at its exit a third, which is the newest. They lie where
the policy may delete or break them: then the new shell starts with less, or with nothing. Called by `session`.
"""

from __future__ import annotations

import contextlib
import os
import stat

from prorl_cli.sandbox.boxed.shell.script import WHOLE

LARGE = 256 * 1024
"""Bytes of state from which it is not written after every command, for that would slow each of them."""
SELDOM = 16
"""Every how many commands a large state is."""


class States:
    """In `folder`, which need not exist."""

    def __init__(self, folder: str) -> None:
        self.at_exit = f"{folder}/state-exit"
        self._turns = [f"{folder}/state-0", f"{folder}/state-1"]
        self._commands = 0

    def next_turn(self) -> str | None:
        """Where the next command's state goes; None where it is large and was written not long ago."""
        self._commands += 1
        if self._commands % SELDOM and _size(self._turns[0]) > LARGE:
            return None
        self._turns.reverse()
        return self._turns[0]

    def newest(self) -> str | None:
        """For the next shell, what the last one left: at its exit, or else after a command."""
        with contextlib.suppress(OSError):
            if _is_whole(self.at_exit):
                os.replace(self.at_exit, self._turns[0])  # noqa: PTH105 - see `isolation._write`
        _remove(self.at_exit)
        return next(filter(_is_whole, self._turns), None)

    def forget(self) -> None:
        """The next shell takes over nothing."""
        for path in (self.at_exit, *self._turns):
            _remove(path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError:
        return 0


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - see `isolation._write`


def _is_whole(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        about = os.fstat(file)
        start = max(0, about.st_size - len(WHOLE))
        return stat.S_ISREG(about.st_mode) and os.pread(file, len(WHOLE), start) == WHOLE
    finally:
        os.close(file)
