"""How often a role may be restarted. Pure: fed the clock."""

from __future__ import annotations

from collections import deque

WINDOW_S = 600.0
"""The window of `cluster.restarts`: longer than any start-up, shorter than a night."""


class RestartBudget:
    """At most `allowed` restarts of each name within `WINDOW_S`."""

    def __init__(self, allowed: int) -> None:
        self._allowed = allowed
        self._times: dict[str, deque[float]] = {}

    def spend(self, name: str, now: float) -> bool:
        """Whether `name` may be restarted at `now`; if so it counts."""
        times = self._times.setdefault(name, deque())
        while times and now - times[0] > WINDOW_S:
            times.popleft()
        if len(times) >= self._allowed:
            return False
        times.append(now)
        return True
