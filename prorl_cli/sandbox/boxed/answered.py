"""A call whose answer needs no waiting: what a session knows at once, or why a child could not be begun.

Called by the supervisor and by sessions.
"""

from __future__ import annotations

import math

from prorl_cli.sandbox.boxed import tool_run
from prorl_cli.sandbox.boxed.calls import Result


class Answered:
    """Its `result` is there from the start; nothing else ever happens to it."""

    def __init__(self, result: Result) -> None:
        self.result: Result | None = result

    @classmethod
    def for_want(cls, error: OSError) -> Answered:
        """Of what a child needs; the policy may hold all of it."""
        what = tool_run.limit_of(error)
        return cls(tool_run.limited(what) if what else tool_run.failed(f"it could not be begun: {error.strerror}"))

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def ready(self, descriptor: int) -> None:
        """There is none."""

    def ended(self, pid: int, status: int) -> None:
        """None is waited for."""

    def wake_at(self) -> float:
        return math.inf

    def tick(self, now: float) -> None:
        """There is an answer."""

    def limited(self, what: str) -> None:
        """There is an answer."""

    def settle(self) -> None:
        """Nothing is left."""
