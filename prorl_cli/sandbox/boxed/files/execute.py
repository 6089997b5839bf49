"""Tool `_execute {"argv", "stdin", "cwd"}` of graders: one program, how it ended, and what it wrote on its two outputs.

No process but the box's first stands between the program and its answer: what is graded may kill and trace its equals,
and can say nothing in their name. The answer's output is `{"exit", "stdout", "stderr", "omitted"}` as JSON; `exit` is
negative for a signal. Refuses (outcome `error`) only a program that is not there. Never offered to a policy.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import tool_run, tree
from prorl_cli.sandbox.boxed.bounded import Bounded
from prorl_cli.sandbox.boxed.calls import PATH, Result, Setting
from prorl_cli.sandbox.boxed.forking import CLEAR_S, EXIT_OWN_DOING

STDOUT, STDERR = (256 * 1024, 4096), (0, 4096)
"""Bytes kept of head and tail: verdicts are read from the one, people read the end of the other."""

_CHUNK = 64 * 1024


def open_session(setting: Setting) -> Programs:
    """See `calls`; there is no state but the box's."""
    return Programs(setting)


class Programs:
    """One program a call."""

    root = 0

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def call(self, arguments: dict[str, Any], deadline: float) -> Program:
        return Program(self._setting, arguments, deadline)

    def descriptors(self) -> Sequence[int]:
        return ()

    def ready(self, descriptor: int) -> None:
        """There are no descriptors between calls."""

    def ended(self, pid: int, status: int) -> None:
        """Nothing of a program outlives its call."""


def _program(name: str, folder: str) -> str | None:
    """Its path; None where no such program is installed. One below the folder is the work's own: if it is not there,
    it fails like any other."""
    if "/" in name and not os.path.isabs(name):  # noqa: PTH117 - see `isolation._write`
        return os.path.join(folder, name)  # noqa: PTH118
    return shutil.which(name, path=os.environ.get("PATH", PATH))


class Program:
    """A running one."""

    def __init__(self, setting: Setting, arguments: dict[str, Any], deadline: float) -> None:
        self.result: Result | None = None
        self._deadline = deadline
        self._kept: dict[int, Bounded] = {}
        self._pid = 0
        argv: list[str] = arguments["argv"]
        folder = os.path.join(setting.home, arguments["cwd"])  # noqa: PTH118 - see `isolation._write`
        found = _program(argv[0], folder)
        if found is None:
            self.result = tool_run.failed(f"there is no program {argv[0]}")
        else:
            self._start(setting, [found, *argv[1:]], arguments["stdin"].encode(), folder)

    def _start(self, setting: Setting, argv: list[str], stdin: bytes, folder: str) -> None:
        given = os.memfd_create("stdin")
        with open(given, "wb", closefd=False) as file:
            file.write(stdin)
        os.lseek(given, 0, os.SEEK_SET)
        (out, theirs_out), (err, theirs_err) = (os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) for _ in range(2))
        for end in (theirs_out, theirs_err):
            os.set_blocking(end, True)
        self._out, self._err = out, err
        self._kept = {out: Bounded(*STDOUT), err: Bounded(*STDERR)}
        self._pid = os.fork()
        if self._pid == 0:
            _become(setting, argv, folder, (given, theirs_out, theirs_err))
        for end in (given, theirs_out, theirs_err):
            os.close(end)
        self._open = {out, err}

    def descriptors(self) -> Sequence[int]:
        return tuple(self._open) if self._pid else ()

    def ready(self, descriptor: int) -> None:
        self._take(descriptor)

    def _take(self, descriptor: int) -> bool:
        """Read on; False where nothing is there now."""
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._open.discard(descriptor)
        self._kept[descriptor].feed(data)
        return bool(data)

    def ended(self, pid: int, status: int) -> None:
        if pid != self._pid or self.result is not None:
            return
        for descriptor in tuple(self._open):
            for _ in range(16):  # what the pipe holds; a child of the program may write for ever
                if not self._take(descriptor):
                    break
        said = {"exit": os.waitstatus_to_exitcode(status)} | self._said()
        self.result = {"outcome": "ok", "output": json.dumps(said)}

    def _said(self) -> dict[str, Any]:
        out = self._kept[self._out]
        return {"stdout": out.text(), "stderr": self._kept[self._err].text(), "omitted": out.omitted}

    def wake_at(self) -> float:
        return self._deadline

    def tick(self, now: float) -> None:
        self.result = {"outcome": "timeout", "output": json.dumps({"exit": 0} | self._said())}

    def limited(self, what: str) -> None:
        self.result = self.result or tool_run.limited(what)

    def settle(self) -> None:
        """End all that the program left behind."""
        for descriptor in self._kept:
            os.close(descriptor)
        if not tree.clear(CLEAR_S):
            os._exit(EXIT_OWN_DOING)


def _become(setting: Setting, argv: list[str], folder: str, ends: tuple[int, ...]) -> NoReturn:
    """In the child; `become` closes nothing below 3, all else is closed by the exec."""
    try:
        for number, end in enumerate(ends):
            os.dup2(end, number)
        setting.become()
        with contextlib.suppress(OSError):
            os.chdir(folder)
        kept = {"PATH": PATH, "LANG": "C.UTF-8"} | os.environ
        os.execve(argv[0], argv, kept | {"HOME": setting.home, "PYTHONDONTWRITEBYTECODE": "1"})
    finally:
        os._exit(127)
