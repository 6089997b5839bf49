"""A process between a builder and its build, so that nothing of the build outlives the builder.

Run as a file, with the standard library alone: `guard.py SCRATCH COMMAND…`. Its standard input is a pipe that the
builder holds open; when that closes, or the command ends, everything below this process is killed. When it closed,
SCRATCH is removed, with what belongs to the ids of a user namespace. Refuses nothing. Called by `build` and `stage`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_NEW_USER_NAMESPACE = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def guarded(
    command: Sequence[str], scratch: Path, env: Mapping[str, str], held: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The command under a guard, over when the block is. Locks of descriptors in `held` last until it is, too."""
    words = [sys.executable, "-I", "-S", "-B", __file__, str(scratch), *command]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, env=env, cwd="/", umask=0o022, pass_fds=held,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin and process.stdout
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main(scratch: str, command: list[str]) -> int:
    """The command's exit code; 128 + n for signal n."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end is the pipe's, once the builder has seen to its lease
    code, abandoned = 127, False
    try:
        code, abandoned = _run(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]} does not start: {error.strerror}\n")
    _kill_below()
    if abandoned:
        remove(scratch)
    return code if code >= 0 else 128 - code


def remove(folder: str) -> None:
    """Remove a build's folder: unwritable folders in it, and files of subordinate ids (singularity #4263)."""
    with contextlib.suppress(OSError):
        _remove_own(folder)
    if Path(folder).is_dir():
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _as_root_of_a_namespace(folder)


def _run(command: list[str]) -> tuple[int, bool]:
    """The exit code, and whether the builder went first."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_below(os.getpid()))
    ended = os.pidfd_open(child.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN | select.POLLHUP)
    while ended not in (ready := dict(poll.poll())):
        if 0 in ready:
            child.kill()
            child.wait()
            return 128 + signal.SIGKILL, True
    return child.wait(), False


def _below(guard: int) -> Callable[[], None]:
    """What the command does before its exec: it hears signals again, and ends even where its guard is killed."""

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)

    return prepare


def _kill_below() -> None:
    """Orphans of the build come to this process, the subreaper; each round kills all that are there."""
    for _ in range(500):
        found = _descendants(os.getpid())
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _descendants(top: int) -> list[int]:
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found = {top}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {top})


def _remove_own(folder: str) -> None:
    Path(folder).chmod(0o700)
    for place, names, _ in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _as_root_of_a_namespace(folder: str) -> None:
    """Maps this user and its subordinate ids as the builder's own fakeroot does, by the same helpers."""
    pid = os.fork()
    if not pid:
        _libc.unshare(_NEW_USER_NAMESPACE)
        os.kill(os.getpid(), signal.SIGSTOP)
        _remove_own(folder)
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        for helper, table, own in ("newuidmap", "/etc/subuid", os.getuid()), ("newgidmap", "/etc/subgid", os.getgid()):
            start, count = _subordinate(table)
            subprocess.run([helper, str(pid), "0", str(own), "1", "1", start, count], check=True, timeout=60)
    finally:
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)


def _subordinate(table: str) -> tuple[str, str]:
    names = (pwd.getpwuid(os.getuid()).pw_name, str(os.getuid()))
    with open(table, encoding="utf-8") as file:
        for line in file:
            name, start, count = line.strip().split(":")
            if name in names:
                return start, count
    raise FileNotFoundError(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
