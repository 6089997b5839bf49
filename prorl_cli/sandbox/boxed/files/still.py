"""Tool `_still {}` of graders: ends every process of the box but its first, so that what is there stays as it is.

For the end of an episode: nothing of the policy goes on, and nothing can end whoever then reads the box. A box that
cannot be brought to rest ends, as its own doing. Never offered to a policy.
"""

from __future__ import annotations

import os
from typing import Any

from prorl_cli.sandbox.boxed import tree
from prorl_cli.sandbox.boxed.answered import Answered
from prorl_cli.sandbox.boxed.calls import Setting
from prorl_cli.sandbox.boxed.forking import CLEAR_S, EXIT_OWN_DOING


def open_session(setting: Setting) -> Stillness:
    """See `calls`."""
    return Stillness()


class Stillness:
    """It has neither processes nor descriptors."""

    root = 0

    def call(self, arguments: dict[str, Any], deadline: float) -> Answered:
        if not tree.clear(CLEAR_S):
            os._exit(EXIT_OWN_DOING)
        return Answered({"outcome": "ok", "output": ""})

    def descriptors(self) -> tuple[int, ...]:
        return ()

    def ready(self, descriptor: int) -> None:
        """There are no descriptors."""

    def ended(self, pid: int, status: int) -> None:
        """There are no processes."""
