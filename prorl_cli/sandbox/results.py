"""What a tool call gave and how a box ended; pure. The one place that tells the policy's doing from the machine's.

A box that its own action ended answers further calls with outcome `dead`; one that was killed from outside, could
not be set up or lost its parent is an `InfraError`, never a result.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from typing import Any

import msgspec

from prorl_cli.sandbox.boxed.forking import EXIT_OWN_DOING
from prorl_cli.sandbox.boxed.supervisor import EXIT_CLOSED, EXIT_SETUP
from prorl_cli.sandbox.boxed.tool_run import signal_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """One answered call; all outcomes are the policy's doing.

    `outcome`: ok, error, timeout, limit:memory, limit:cpu, limit:processes, limit:disk, dead. `output` is for the
    policy to read, `facts` (exit code, working folder, bytes omitted …) are for graders. `seconds` from asking to
    answer.
    """

    output: str
    outcome: str
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A box is no more: through its own action, or not."""

    by_policy: bool
    how: str


class Reply(msgspec.Struct, frozen=True):
    """A frame from a box; id 0 is about the box itself ("ready" or "broken")."""

    id: int
    outcome: str
    output: str = ""
    facts: dict[str, Any] = {}


class Ended(msgspec.Struct, frozen=True):
    """The zygote's notice: box `ended` has wait status `status`, or `why` it never came to be."""

    ended: int
    status: int
    why: str


_OWN_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
"""What only the box's own processes bring about. A kill says nothing of who killed: it counts as outside."""


def judge(notice: Ended) -> Death:
    """From the wait status of a box's first process."""
    if notice.why:
        return Death(by_policy=False, how=notice.why)
    if os.WIFSIGNALED(notice.status):
        ending = os.WTERMSIG(notice.status)
        name = signal_name(ending)
        own = ending in _OWN_CRASHES
        return Death(by_policy=own, how=f"died of {name}" if own else f"was killed by {name} from outside")
    code = os.WEXITSTATUS(notice.status)
    how = {
        EXIT_CLOSED: "was closed",
        EXIT_SETUP: "could not be set up",
        EXIT_OWN_DOING: "was given up: its processes multiplied faster than they could be ended",
    }
    return Death(by_policy=code == EXIT_OWN_DOING, how=how.get(code, f"exited with code {code}"))
