"""Folders of ended boxes are removed by children of the zygote, for a large one takes its time.

Such a child holds nothing else of its zygote's: no socket by whose end others learn of a death, no permit, no lock.
Called by the kinds of boxes (`forked`, `launched`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from prorl_cli import nodelocal


class Removers:
    """`at_work` are their pids. Each calls `become` before it removes anything."""

    def __init__(self, become: Callable[[], None] = lambda: None) -> None:
        self._become = become
        self.at_work: set[int] = set()

    def remove(self, folder: str) -> int:
        """Begin to; the pid of who does it. 0: no process can be had, and the folder goes with its zygote's."""
        try:
            pid = os.fork()
        except OSError:
            return 0
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.closerange(3, 1 << 20)
                self._become()
                nodelocal.remove(Path(folder))
            finally:
                os._exit(0)
        self.at_work.add(pid)
        return pid
