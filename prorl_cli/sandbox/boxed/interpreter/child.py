"""One worker process of a python session: born, spoken to, heard, interrupted, ended. Never waits for it.

It runs the image's `python3` from PATH, or, as a fork of the box's first process, prorl's own, which needs neither
an interpreter nor a loader in the image. Refuses answers that are none: then `nonsense` is set. Used by `session`.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import math
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from prorl_cli.sandbox.boxed import processes, tree
from prorl_cli.sandbox.boxed.calls import Setting

_TEXT = Path(__file__).with_name("worker.py").read_bytes()
"""Of the worker; the box's own user may not be able to read the file."""

_BOOT = """\
import os, sys
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data
if sys.version_info < (3, 8):
    sys.exit(3)
sys.path[:] = filter(None, sys.path)
text = take(int.from_bytes(take(4), "big"))
exec(compile(text, "<prorl>", "exec"), {"__name__": "prorl_worker", "__builtins__": dict(vars(__builtins__))})
"""
# Builtins of its own: those that a cell replaces are not the worker's.

_QUIET = {"MPLBACKEND": "Agg", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "PIP_NO_INPUT": "1"}

_LONGEST_ANSWER = 64 * 1024
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """How cell `number` ended: ok, raised (`detail` is what) or exit (`detail` is the code); `folder` it is in now."""

    number: int
    kind: str
    detail: str
    folder: str


class Child:
    """`up` once it has said what it is (`name`); `answer` is the last one; its output is fed to `feed`."""

    def __init__(self, setting: Setting, feed: Callable[[bytes], None], *, of_image: bool) -> None:
        self.up = self.nonsense = False
        self.name = ""
        self.answer: Answer | None = None
        self._feed = feed
        self._unsent = bytearray(_framed(_TEXT) if of_image else b"")
        self._heard = bytearray()
        ours, theirs = socket.socketpair()
        self._pipe, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become(setting, theirs.fileno(), write_end, of_image=of_image)
        except OSError:
            ours.close()
            os.close(self._pipe)
            raise
        finally:
            theirs.close()
            os.close(write_end)
        self._channel = ours.detach()
        for descriptor in (self._pipe, self._channel):
            os.set_blocking(descriptor, False)
        self.flush()

    def descriptors(self) -> list[int]:
        return [descriptor for descriptor in (self._channel, self._pipe) if descriptor >= 0]

    def ready(self, descriptor: int) -> None:
        if descriptor == self._channel:
            self._hear()
        elif descriptor == self._pipe:
            self._read(_PIECE)

    def send(self, number: int, code: str) -> None:
        self._unsent += _framed(f"{number}\n{code}".encode(errors="replace"))
        self.flush()

    def flush(self) -> None:
        """Send on what the worker's end has room for."""
        if self._channel < 0 or not self._unsent:
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(self._channel, self._unsent[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:  # it ends, or has closed its end
            self._unsent.clear()

    @property
    def pending(self) -> bool:
        return bool(self._unsent)

    def drain(self) -> None:
        """Take in what is in the pipe now; not what comes meanwhile, for a background thread may never stop."""
        if self._pipe >= 0:
            left = struct.unpack("i", fcntl.ioctl(self._pipe, termios.FIONREAD, b"\0" * 4))[0]
            while left > 0 and (taken := self._read(min(left, _PIECE))):
                left -= taken

    def interrupt(self, *, since: float) -> None:
        """It, and those that it started `since` then: `os.system` waits for its program whatever happens."""
        for pid in {self.pid} | (self.started(since) if since < math.inf else set()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def kill(self) -> None:
        """With all that it started."""
        for pid in self.started() | {self.pid}:
            tree.kill(pid)

    def started(self, since: float = 0.0) -> set[int]:
        """The living processes of its session and those below them, as far as born `since` then (seconds of uptime)."""
        living = processes.below(os.getpid())
        session = {process.pid for process in living if process.session == self.pid}
        branch = processes.branch(living, session) - {self.pid}
        return {
            process.pid for process in living if process.pid in branch and process.started >= since * processes.TICKS
        }

    def close(self) -> None:
        for descriptor in self.descriptors():
            os.close(descriptor)
        self._channel = self._pipe = -1

    def _read(self, size: int) -> int:
        try:
            data = os.read(self._pipe, size)
        except BlockingIOError:
            return 0
        if not data:
            os.close(self._pipe)
            self._pipe = -1
        self._feed(data)
        return len(data)

    def _hear(self) -> None:
        try:
            data = os.read(self._channel, _PIECE)
        except BlockingIOError:
            return
        except OSError:  # it ended before it read all that was said to it
            data = b""
        self._heard += data
        try:
            while body := self._next():
                self._take(*body.split(b"\0"))
        except (TypeError, ValueError):
            self.nonsense = True
        if not data or self.nonsense:
            os.close(self._channel)
            self._channel = -1

    def _next(self) -> bytes | None:
        end = 4 + int.from_bytes(self._heard[:4], "big")
        if end > _LONGEST_ANSWER:
            raise ValueError("no answer is that long")
        if len(self._heard) < max(end, 5):
            return None
        body = bytes(self._heard[4:end])
        del self._heard[:end]
        return body

    def _take(self, number: bytes, kind: bytes, detail: bytes, folder: bytes) -> None:
        """Raises `ValueError` or, for other than four fields, `TypeError`."""
        words = [field.decode(errors="replace") for field in (kind, detail, folder)]
        if words[0] == "hello":
            self.up, self.name = True, words[1]
        else:
            self.answer = Answer(int(number), *words)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def _become(setting: Setting, channel: int, output: int, *, of_image: bool) -> NoReturn:
    """In the child."""
    try:
        os.dup2(channel, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        setting.become()
        with contextlib.suppress(OSError):  # the policy may have removed it
            os.chdir(setting.home)
        os.environ.update(_QUIET)
        os.environ.setdefault("IPYTHONDIR", f"{setting.private}/ipython")
        if of_image:
            os.execvpe("python3", ["python3", "-c", _BOOT], os.environ)
        os.closerange(3, 1 << 20)
        exec(
            compile(_TEXT, "<prorl>", "exec"),
            {"__name__": "prorl_worker", "__builtins__": dict(vars(builtins))},
        )
    finally:
        os._exit(127)
