"""One command in progress: answered when the shell says that it is done, when it ended, or at the top of the `ladder`.

Never waits: the box's first process tells it what there is to read, who ended and what time it is. A shell that ends
before it has begun is replaced, and the command handed to the next. Called by `session`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prorl_cli.sandbox.boxed import kin, processes, tool_run
from prorl_cli.sandbox.boxed.bounded import Bounded
from prorl_cli.sandbox.boxed.calls import Result
from prorl_cli.sandbox.boxed.shell import answers, script
from prorl_cli.sandbox.boxed.shell.ladder import LOOK_S, Ladder

if TYPE_CHECKING:
    from prorl_cli.sandbox.boxed.shell.session import BashSession

_STARTS = 3
"""Shells for one command, before bash counts as unable to run here."""
_SWEEPS = 8
"""Looks at the process list in one go while what multiplies is killed."""


class BashCall:
    """A command in `session`'s shell."""

    result: Result | None = None

    def __init__(self, session: BashSession, command: str, deadline: float) -> None:
        self._session = session
        self._command = command
        self._seconds = deadline - time.monotonic()
        self._wake = deadline
        self._output = Bounded()
        self._ladder: Ladder | None = None
        self._cut = "timeout"
        self._begun = self._answered = False
        self._starts = 0
        session.pipe.rest()  # what background jobs have printed since
        self._since = kin.mark()
        self._begin()

    def _begin(self) -> None:
        self._nonce = os.urandom(8).hex()
        self._starts += 1
        try:
            self._session.hand_over(self._nonce, self._command)
        except OSError as error:
            self._not_handed_over(error)

    def _not_handed_over(self, error: OSError) -> None:
        if self._session.shell:
            self._session.kill(f"did not listen ({error})")
            self._again()
        elif limit := tool_run.limit_of(error):
            self.result = answers.failed(f"no shell could be started: {error.strerror}", f"limit:{limit}")
        else:
            self.result = answers.failed(error.strerror or str(error))

    def _again(self) -> None:
        if self._starts < _STARTS:
            self._begin()
        else:
            self.result = answers.failed(f"bash does not come up: it {self._session.lost}")

    def descriptors(self) -> Sequence[int]:
        """What is printed, and what the shell says."""
        shell = self._session.shell
        return [self._session.pipe.end, *(shell.descriptors() if shell else ())]

    def ready(self, descriptor: int) -> None:
        """Read on."""
        if descriptor == self._session.pipe.end:
            self._output.feed(self._session.pipe.burst())
        else:
            self._listen()

    def _listen(self) -> None:
        shell = self._session.shell
        for record in shell.records() if shell else ():
            if shell and record.nonce == self._nonce and not self._answered:
                shell.proved = shell.proved or record.word != "blind"
                self._hear(record)

    def _hear(self, record: script.Record) -> None:
        if record.word == "blind":
            self._session.kill("had lost its output")
            self._gone_before()
        elif record.word == "begun":
            self._begun = True
        elif not self._begun and self._ladder is None:
            self._session.kill("lost its lines")
            self._session.distrust()
            self.result = answers.failed("something read what the shell was told: the command may not have run")
        else:
            self._session.exit_code = record.exit_code
            self._session.folder = record.folder or self._session.folder
            self._answer()

    def ended(self, pid: int, status: int) -> None:
        """The shell has, if it is its pid: by `exit`, by the last of the programs it had become, by a signal."""
        shell = self._session.shell
        if shell is None or pid != shell.pid:
            return
        self._listen()
        self._session.ended(pid, status)
        if self._ladder:
            self._session.lost = "had to be ended"
        if self._begun and not self._answered:
            self._answer()
        elif not self._answered:
            if not shell.proved:
                self._session.distrust()
            self._gone_before()

    def _gone_before(self) -> None:
        """The shell was lost before it began: another one may, while there is time."""
        if self._ladder:
            self._answer()
        else:
            self._again()

    def _answer(self) -> None:
        """The shell waits for its next line, or is gone."""
        self._answered = True
        self._wake = 0.0
        if self._ladder is None:
            self._finish("ok")

    def wake_at(self) -> float:
        """The deadline, then every moment until nothing of the command is left."""
        return self._wake

    def tick(self, now: float) -> None:
        """Up the ladder."""
        self._ladder = self._ladder or Ladder(now)
        left = self._left()
        step = self._ladder.step(now, self._answered, bool(left))
        if step.over:
            self._finish(self._cut)
            return
        if step.shell and self._session.shell:  # first, or it goes on with the next line when its program is gone
            kin.send([self._session.shell.pid], step.shell)
        if step.command:
            kin.send(left, step.command)
        if step.command == signal.SIGKILL:
            self._sweep()
        self._wake = time.monotonic() + LOOK_S  # looking itself takes a while on a full machine

    def _left(self) -> list[int]:
        shell = self._session.shell
        return kin.of_call(processes.living(), os.getpid(), shell.pid if shell else 0, self._since)

    def _sweep(self) -> None:
        for _ in range(_SWEEPS):
            if not (left := self._left()):
                break
            kin.send(left, signal.SIGKILL)

    def limited(self, what: str) -> None:
        """The box reached its limit of `what`, and what was largest was killed: the rest of the command goes, too."""
        if self._ladder is None:
            self._cut = f"limit:{what}"
            self._ladder = Ladder(time.monotonic())
            self._wake = 0.0

    def _finish(self, outcome: str) -> None:
        session = self._session
        if not self._answered:
            session.kill("had to be ended")
        if not self._begun:  # what the shell took over may be why
            session.distrust()
        self._output.feed(session.pipe.rest())
        code = session.exit_code if session.shell else 0  # how it ended is said below
        notes = [answers.outcome_note(outcome, code, self._seconds)]
        if lost := session.lost:
            notes.append(answers.lost_note(lost, session.kept))
            session.lost = ""
        facts = {
            "exit_code": session.exit_code if outcome == "ok" else None,
            "cwd": session.folder.encode(errors="replace").decode(),  # names that are no UTF-8 are no JSON either
            "restarted": bool(lost),
            "omitted": self._output.omitted,
        }
        self.result = answers.answer(outcome, self._output.text(), facts, [note for note in notes if note])

    def settle(self) -> None:
        """A lost shell is replaced at once, not in the next call's time."""
        with contextlib.suppress(OSError):  # the next call says why
            self._session.revive()
