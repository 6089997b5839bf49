"""What is done, and when, about a command whose time is up: interrupt, terminate, kill, then the shell; pure.

As soon as the shell has answered (or is gone) and nothing of the command is left, it is over; at the latest after
`GIVE_UP_S`, for a process in the kernel's hands can outlive any signal. Called by `session`.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

TERMINATE_S, KILL_S, KILL_SHELL_S, GIVE_UP_S = 0.3, 0.8, 1.3, 2.5
"""After the deadline. A box may answer a few seconds late, so that programs get a moment to end in order."""
LOOK_S = 0.02
"""Between two looks at what is left."""

_COMMAND = (TERMINATE_S, signal.SIGTERM), (0.0, signal.SIGINT)
_SHELL = (KILL_SHELL_S, signal.SIGKILL), (TERMINATE_S, signal.SIGVTALRM), (0.0, signal.SIGINT)
"""An interrupted shell drops the rest of the command if what it waits for dies of the interrupt, too. If not, it would
go on with the next line; so it is ended in order then, by a signal that is fatal to it, but saves its state and spares
its jobs, unlike a hang-up."""


class Step(NamedTuple):
    """Signals for the command's processes and for the shell (0: none), or the end of it."""

    command: int = 0
    shell: int = 0
    over: bool = False


class Ladder:
    """Of one command, from `began` on."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._climbed = -1.0

    def step(self, now: float, answered: bool, left: bool) -> Step:
        """`answered`: the shell waits for its next line, or is gone; `left`: processes of the command live."""
        passed = now - self._began
        if (answered and not left) or passed >= GIVE_UP_S:
            return Step(over=True)
        before, self._climbed = self._climbed, passed
        shell = 0 if answered else next((number for at, number in _SHELL if before < at <= passed), 0)
        command = next((number for at, number in _COMMAND if before < at <= passed), 0)
        return Step(command=signal.SIGKILL if passed >= KILL_S else command, shell=shell)
