"""Ending every descendant of this process; refuses to wait past its deadline. Called by supervisor and zygote.

Both adopt orphans, so whatever a tool left behind becomes a child of the caller sooner or later: killing
children until there are none ends the whole tree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from prorl_cli.sandbox.boxed import processes


def childless() -> bool:
    """Reap what has ended; whether nothing is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def kill(pid: int) -> None:
    """SIGKILL, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_children(spare: Collection[int] = ()) -> None:
    """SIGKILL every child but those spared, by one pass over /proc: not every kernel lists them."""
    own = os.getpid()
    for process in processes.living():
        if process.parent == own and process.pid not in spare:
            kill(process.pid)


def clear(within_s: float, patience_s: float = 0.0) -> bool:
    """Kill and reap descendants until none is left; False when they multiply faster than they die.

    For the first `patience_s` they are only waited for: they may be busy clearing descendants of their own.
    """
    began = time.monotonic()
    while not childless():
        passed = time.monotonic() - began
        if passed > within_s:
            return False
        if passed >= patience_s:
            kill_children()
        time.sleep(0.0005)  # whoever was killed needs a moment to be gone
    return True
