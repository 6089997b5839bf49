"""Real child processes: one that does what it is told, and those that die by SIGKILL right before their k-th system
call, for every k, with nothing cleaned up."""

import os
import signal
import sys
import traceback
from itertools import count

CALLS = (
    "open", "write", "pwrite", "fsync", "fdatasync", "close", "rename", "replace", "link", "unlink", "mkdir", "rmdir",
    "stat", "lstat", "fstat", "listdir", "scandir", "read", "pread",
)  # fmt: skip


def in_child(act, *args):
    """Run `act` in a forked process that may give up its rights; fails when it fails."""
    code = wait(fork(lambda: act(*args)))
    assert code == 0, f"the child failed with {code}: see its output"


def fork(act):
    """The id of a process that runs `act` and exits 0, or 1 when it raised."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        act()
        code = 0
    finally:
        if code:
            traceback.print_exc(file=sys.stderr)
        os._exit(code)


def wait(pid):
    """Its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def deaths(act, *, torn=False):
    """For each k, run `act(k, tell)` in a child killed before its k-th call, and yield k with what it told before that.

    The last yield is that of the child that lived to the end. With `torn`, a `write` that is not made is half made.
    """
    for k in count(1):
        told, code = _child(act, k, torn)
        yield k, told
        if code == 0:
            return
        assert code == -signal.SIGKILL, f"the child failed by itself before call {k}: {code}"


def _child(act, k, torn):
    reader, writer = os.pipe()
    pid = fork(lambda: _live(act, k, torn, writer))
    os.close(writer)
    with open(reader, "rb") as pipe:
        told = pipe.read()
    return told.decode().split(), wait(pid)


def _live(act, k, torn, pipe):
    write, kill = os.write, os.kill
    left = [k]

    def counted(name, real):
        def call(*args, **kinds):
            left[0] -= 1
            if left[0] == 0:
                if torn and name == "write":
                    write(args[0], bytes(args[1])[: len(args[1]) // 2])
                kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kinds)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    act(k, lambda word: write(pipe, f"{word} ".encode()))
