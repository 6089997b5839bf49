"""What is done, and when, about a command whose time is up: interrupt, terminate, kill, then the shell; pure.

As soon as the shell has answered (or is gone) and nothing of the command is left, it is over; at the latest after
`GIVE_UP_S`, for a process in the kernel's hands can outlive any signal. Called by `session`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

TERMINATE_S, KILL_S, KILL_SHELL_S, GIVE_UP_S = 0.3, 0.8, 1.3, 2.5
"""After the deadline. A box may answer a few seconds late, so that programs get a moment to end in order."""
LOOK_S = 0.02
"""Between two looks at what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
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
        rung, self._climbed = self._climbed, passed
        busy = 0 if answered else signal.SIGINT
        if passed >= KILL_S:
            hard = passed >= KILL_SHELL_S and not answered
            return Step(command=signal.SIGKILL, shell=signal.SIGKILL if hard else busy)
        if passed >= TERMINATE_S > rung:
            return Step(command=signal.SIGTERM, shell=busy and signal.SIGTERM)
        return Step(command=signal.SIGINT, shell=busy) if rung < 0 else Step()
