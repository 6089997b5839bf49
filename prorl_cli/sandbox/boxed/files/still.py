"""Tool `_still {}` of graders: ends every process of the box but its first, so that what is there stays as it is.

For the end of an episode: nothing of the policy goes on, and nothing can end whoever then reads the box. A box that
cannot be brought to rest ends, as its own doing. Never offered to a policy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from prorl_cli.sandbox.boxed import tree
from prorl_cli.sandbox.boxed.calls import Result, Setting
from prorl_cli.sandbox.boxed.forking import CLEAR_S, EXIT_OWN_DOING


def open_session(setting: Setting) -> Stillness:
    """See `calls`."""
    return Stillness()


class Stillness:
    """It has neither processes nor descriptors, and is its own call."""

    root = 0

    def __init__(self) -> None:
        self.result: Result | None = None

    def call(self, arguments: dict[str, Any], deadline: float) -> Stillness:
        if not tree.clear(CLEAR_S):
            os._exit(EXIT_OWN_DOING)
        self.result = {"outcome": "ok", "output": ""}
        return self

    def descriptors(self) -> Sequence[int]:
        return ()

    def ready(self, descriptor: int) -> None:
        """There are no descriptors."""

    def ended(self, pid: int, status: int) -> None:
        """There are no processes."""

    def wake_at(self) -> float:
        return math.inf

    def tick(self, now: float) -> None:
        """It never waits."""

    def limited(self, what: str) -> None:
        """Whatever broke a limit is ended already."""

    def settle(self) -> None:
        """Nothing is left."""
