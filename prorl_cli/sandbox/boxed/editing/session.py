"""The edit tool as a session of the box: a child per call, and what files were before their last edits.

Refuses to remember more than `MAX_KEPT` bytes and `MAX_UNDOS` edits: the oldest are forgotten. What is remembered
lies in memory files that the children fill and read, so the first process of the box never touches a file. An edit
that was cut off (timeout, limit) may have been made, so it can be undone: at worst a file gets what it has.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prorl_cli.sandbox.boxed import tool_run
from prorl_cli.sandbox.boxed.answered import Answered
from prorl_cli.sandbox.boxed.calls import Call, Setting
from prorl_cli.sandbox.boxed.editing import commands
from prorl_cli.sandbox.boxed.forking import ForkedCall

MAX_KEPT = 32 * 2**20
MAX_UNDOS = 200


class EditSession:
    """`undos` are the files that were edited and the memory files of what they were before, oldest first."""

    root = 0

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._undos: list[tuple[str, int]] = []

    def call(self, arguments: dict[str, Any], deadline: float) -> Call:
        path = arguments.get("path")
        if not isinstance(path, str) or not path or "\0" in path or not isinstance(arguments.get("command"), str):
            return Answered(tool_run.failed("command and path are needed, both strings"))
        path = str(Path(self._setting.home, path))
        return self._forked(os.path.normpath(path), arguments | {"path": path}, deadline - time.monotonic())

    def _forked(self, key: str, arguments: dict[str, Any], timeout_s: float) -> Call:
        last = next((kept for kept in reversed(self._undos) if kept[0] == key), None)
        before = os.memfd_create("before")

        def become() -> None:
            os.dup2(before, commands.SAVED)
            os.dup2(last[1] if last else os.memfd_create("nothing"), commands.UNDONE)
            self._setting.become()

        def settled(outcome: str) -> None:
            if outcome == "ok" and arguments["command"] == "undo_edit" and last:
                self._forget(last)
            if outcome != "error" and commands.saved(before):
                self._keep((key, before))
            else:
                os.close(before)

        try:
            return EditCall(arguments, timeout_s, become, settled)
        except OSError:
            os.close(before)
            raise

    def _keep(self, undo: tuple[str, int]) -> None:
        self._undos.append(undo)
        while len(self._undos) > MAX_UNDOS or sum(os.fstat(fd).st_size for _, fd in self._undos) > MAX_KEPT:
            self._forget(self._undos[0])

    def _forget(self, undo: tuple[str, int]) -> None:
        self._undos.remove(undo)
        os.close(undo[1])

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def ready(self, descriptor: int) -> None:
        """There is none."""

    def ended(self, pid: int, status: int) -> None:
        """None is waited for."""


class EditCall(ForkedCall):
    """Says `settled` its outcome."""

    def __init__(
        self,
        arguments: dict[str, Any],
        timeout_s: float,
        become: Callable[[], None],
        settled: Callable[[str], None],
    ) -> None:
        self._settled = settled
        super().__init__(commands.run, arguments, timeout_s, become, alone=False)

    def settle(self) -> None:
        super().settle()
        assert self.result, "nothing is settled before its answer"
        self._settled(self.result["outcome"])
