"""The session that the box's first process drives: a shell that is replaced whenever it is lost, with its state.

Knows no command in progress (`command`): it starts shells, hands them lines, and keeps what lasts from call to call.
Made by the tool `bash`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Any

from prorl_cli.sandbox.boxed import kin, processes
from prorl_cli.sandbox.boxed.answered import Answered
from prorl_cli.sandbox.boxed.calls import Call, Setting
from prorl_cli.sandbox.boxed.shell import answers, script
from prorl_cli.sandbox.boxed.shell.command import BashCall
from prorl_cli.sandbox.boxed.shell.process import Pipe, Shell, find_bash
from prorl_cli.sandbox.boxed.shell.state import States


class BashSession:
    """One box's bash. `lost` says how the last shell ended until a command has told the policy of it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._command_file = f"{setting.private}/command"
        self._states = States(setting.private)
        self.pipe = Pipe()
        self.shell: Shell | None = None
        self._fresh()

    def _fresh(self) -> None:
        self._states.forget()
        self._took_over = False
        self.folder = self._setting.home
        self.exit_code = 0
        self.lost = ""

    @property
    def root(self) -> int:
        """The shell's process."""
        return self.shell.pid if self.shell else 0

    def call(self, arguments: dict[str, Any], deadline: float) -> Call:
        """Run a command, begin with a new shell, or both."""
        if mistake := answers.mistake(arguments):
            return Answered(answers.failed(mistake))
        command = arguments.get("command", "")
        if arguments.get("restart"):
            self._restart()
            if not command:
                return Answered(answers.restarted(self.folder))
        return BashCall(self, command, deadline)

    def descriptors(self) -> Sequence[int]:
        """Between two calls: what background jobs print."""
        return [self.pipe.end]

    def ready(self, descriptor: int) -> None:
        """It belongs to no call."""
        self.pipe.burst()

    def ended(self, pid: int, status: int) -> None:
        """A child of the box has."""
        if self.shell and pid == self.shell.pid:
            self.shell.close()
            self.shell = None
            self.exit_code = answers.exit_code(status)
            self.lost = answers.how_ended(status)

    def kill(self, why: str) -> None:
        """End the shell; the next takes over its state."""
        if self.shell:
            self.shell.kill()
            self.shell = None
            self.lost = why

    def _restart(self) -> None:
        if self.shell:
            kin.send((process.pid for process in processes.below(self.shell.pid)), signal.SIGKILL)
            self.kill("")
        self._fresh()

    def distrust(self) -> None:
        """The state that the last shell took over may be why it did not come up: the next does without."""
        self._states.forget()

    @property
    def kept(self) -> bool:
        """Whether the shell has its predecessor's state; or will have it, where it is still to be started."""
        return self._took_over if self.shell else self._states.newest() is not None

    def revive(self) -> Shell:
        """The shell, another one where it was lost. Raises `OSError`."""
        if self.shell is None:
            bash = find_bash()
            if bash is None:
                raise FileNotFoundError("there is no bash in this image")
            state = self._states.newest()
            self._took_over = state is not None
            self.shell = Shell(bash, self.pipe, self._setting)
            self.shell.write(script.boot(self.folder, state, self._states.at_exit))
        return self.shell

    def hand_over(self, nonce: str, command: str) -> None:
        """Have the shell run it. Raises `OSError`."""
        shell = self.revive()
        run = script.sourced(self._command_file) if self._stored(command) else script.inline(command)
        shell.write(script.lines(nonce, run, self.exit_code, self._states.next_turn()))

    def _stored(self, command: str) -> bool:
        """Whether it could be written to a file: the policy may have filled the disk, or put something in the way."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        data = (command + "\n").encode(errors="replace")
        with contextlib.suppress(OSError):
            os.makedirs(self._setting.private, exist_ok=True)  # noqa: PTH103 - see `isolation._write`
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._command_file)  # noqa: PTH108
            with open(os.open(self._command_file, flags, 0o600), "wb", buffering=0) as file:
                return file.write(data) == len(data)
        return False
