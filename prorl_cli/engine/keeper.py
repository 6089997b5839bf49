"""Stands between an engine's role and its server, so that nothing of the server outlives either of them.

`python -I keeper.py FOLDER COMMAND…` runs the command until it ends, or until standard input closes, as it does when
the role dies in whatever way. Then it kills all that is below it and removes FOLDER. Imports nothing of prorl.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

GRACE_S = 3.0
"""What Python's own resource trackers get to remove the shared memory of the processes killed here."""


def main() -> None:
    """Exits the process, with the command's exit code where it ended by itself."""
    folder, *command = sys.argv[1:]
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Whoever signals a whole job means the role and the server; a handler, unlike SIG_IGN, ends at their exec.
        signal.signal(number, lambda *_: None)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=tied_to(os.getpid()))
    threading.Thread(target=_until_closed, args=(server,), daemon=True).start()
    code = server.wait()
    end_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    # The thread still reads: an ordinary exit would wait for its lock on standard input.
    os._exit(code if code >= 0 else 128 - code)


def tied_to(starter: int):  # type: ignore[no-untyped-def]
    """What a child of `starter` runs before its exec so as not to outlive it."""

    def tie() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != starter:
            os._exit(1)

    return tie


def _until_closed(server: subprocess.Popen[bytes]) -> None:
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as owner:
        while owner.read(1):
            pass
    server.kill()


def end_descendants() -> None:
    """Kill everything below this process, the trackers of shared memory last: they remove what the others leave."""
    below = psutil.Process().children(recursive=True)
    for process in below:
        if not _tracks(process):
            _kill(process)
    _, slow = psutil.wait_procs(below, timeout=GRACE_S)
    for process in {*slow, *psutil.Process().children(recursive=True)}:
        _kill(process)


def _tracks(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


KEEPER = str(Path(__file__))

if __name__ == "__main__":
    main()
