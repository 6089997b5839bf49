"""One bash as a child of the box's first process: started, written to, read from, killed; thin, and it never waits.

Refuses nothing; a shell that no longer listens raises `OSError` at `write`. Called by `session`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import Mapping
from typing import NoReturn

from prorl_cli.sandbox.boxed.calls import PATH, Setting
from prorl_cli.sandbox.boxed.shell import script

_CHUNK = 64 * 1024
_BURST = 16
"""Chunks read at once, before whoever polls may look elsewhere."""

_QUIET = {
    "TERM": "dumb",
    "COLUMNS": "200",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PIP_NO_INPUT": "1",
    "DEBIAN_FRONTEND": "noninteractive",
    "PYTHONUNBUFFERED": "1",
}
"""For programs that would wait for somebody, draw, or keep back what they print until they end."""
_OF_ANOTHER = {"PWD", "OLDPWD", "SHLVL", "_", "PS1", "PROMPT_COMMAND", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"}

_DEFAULTS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGCHLD", "SIGPIPE", "SIGXFSZ")
"""Python ignores some of them; bash and all it starts would inherit that for good."""


def find_bash() -> str | None:
    """The program, on the box's search path."""
    folders = os.environ.get("PATH", PATH).split(":")
    paths = (f"{folder}/bash" for folder in folders if folder.startswith("/"))
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def environment(inherited: Mapping[str, str], home: str) -> dict[str, str]:
    """Of a shell."""
    kept = {name: value for name, value in inherited.items() if name not in _OF_ANOTHER}
    return {"PATH": PATH, "LANG": "C.UTF-8"} | kept | _QUIET | {"HOME": home}


class Pipe:
    """What commands print; it outlives the shells, as their background jobs do."""

    def __init__(self) -> None:
        self.end, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.end, False)

    def burst(self) -> bytes:
        """Some of what is there now."""
        chunks: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(chunks) < _BURST:
                chunks.append(os.read(self.end, _CHUNK))
        return b"".join(chunks)

    def rest(self) -> bytes:
        """All that is there now, and nothing that comes while it is read."""
        left = struct.unpack("i", fcntl.ioctl(self.end, termios.FIONREAD, bytes(4)))[0]
        chunks: list[bytes] = []
        while left > 0:
            chunks.append(os.read(self.end, left))
            left -= len(chunks[-1])
        return b"".join(chunks)


class Shell:
    """A running bash. `folder` is where it begins; `proved` once it has run a command."""

    def __init__(self, bash: str, pipe: Pipe, setting: Setting) -> None:
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self._heard = bytearray()
        self.deaf = self.proved = False
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                _become_bash(bash, theirs.fileno(), pipe.theirs, setting)

    def descriptors(self) -> list[int]:
        """Of records; none once the shell has closed its end (an `exec` does)."""
        return [] if self.deaf else [self._line.fileno()]

    def write(self, text: str) -> None:
        """Lines. Raises `OSError`."""
        data = text.encode(errors="surrogateescape")
        if self._line.send(data) < len(data):
            raise BlockingIOError("the shell does not read its lines")

    def records(self) -> list[script.Record]:
        """What it has said since."""
        try:
            data = self._line.recv(_CHUNK)
            self.deaf = not data
        except BlockingIOError:
            data = b""
        except OSError:
            data, self.deaf = b"", True
        *whole, rest = (bytes(self._heard) + data).split(b"\0")
        self._heard = bytearray(rest)
        return [record for body in whole if (record := script.read_record(body))]

    def close(self) -> None:
        """It has ended."""
        self._line.close()

    def kill(self) -> None:
        """End it; whoever reaps will see it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.close()


def _become_bash(bash: str, line: int, output: int, setting: Setting) -> NoReturn:
    """In the child. `become` may close all but the first three descriptors."""
    try:
        os.dup2(line, 0)
        os.dup2(output, 1)
        setting.become()
        signal.set_wakeup_fd(-1)
        for name in _DEFAULTS:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.dup2(1, script.OUTPUT)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os.dup2(null, 2)  # prompts, and what it says of its jobs
        with contextlib.suppress(OSError):
            os.chdir(setting.home)
        os.execve(bash, ["bash", "--noprofile", "--norc", "--noediting", "-i"], environment(os.environ, setting.home))
    finally:
        os._exit(127)
