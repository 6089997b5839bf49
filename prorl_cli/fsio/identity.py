"""Whether a process is still the one that was meant: a pid alone is not an identity.

Says nothing of other kernels or process namespaces. Called by whoever finds a pid that was written down.
"""

from __future__ import annotations

import psutil


def still_runs(pid: int, started: float) -> bool:
    """Process `pid` of this kernel is the one that started then (unix seconds), and not dead; True also where that
    cannot be told."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) <= 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
