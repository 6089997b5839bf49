"""What a tool must offer to be served in a box: a call in progress, and a session that outlives its calls.

Declarations only. The box's first process drives both in one loop (`supervisor`): it alone polls, reaps and keeps
time, so that a session needs no process that the policy could kill. Implemented by `forking` and by tools with state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where programs are looked for in a box that does not say."""

Result = dict[str, Any]
"""`outcome` (ok, error, timeout, limit:NAME, killed), `output` for the policy, `facts` (small JSON) for graders."""


class Setting(NamedTuple):
    """What a session knows of its box."""

    home: str
    """Where the policy's work begins; it may write there."""
    private: str
    """A folder for the session's own files, in the box; the policy may see and break them."""
    become: Callable[[], None]
    """To be called in every child, before its exec: no way back to the worker, own session, the box's limits."""


class Call(Protocol):
    """One call in progress. `result` is None until there is an answer."""

    result: Result | None

    def descriptors(self) -> Sequence[int]:
        """Those to wait for reading on, now."""

    def ready(self, descriptor: int) -> None:
        """There is something to read."""

    def ended(self, pid: int, status: int) -> None:
        """A child of the box, with wait status `status`; not only this call's own."""

    def wake_at(self) -> float:
        """When `tick` is due, by the monotonic clock; infinity for never."""

    def tick(self, now: float) -> None:
        """It is time: a deadline passed, or a grace."""

    def limited(self, what: str) -> None:
        """The box reached its limit of `what` (memory, cpu, processes, disk), and its processes were killed."""

    def settle(self) -> None:
        """After the answer: end what shall not outlive the call."""


class Session(Protocol):
    """A tool with state. One call at a time; what the rest of the time needs, between calls of whatever tool."""

    @property
    def root(self) -> int:
        """The one process that keeps the state; 0 while there is none. What floods the box is ended before it."""

    def call(self, arguments: dict[str, Any], deadline: float) -> Call:
        """Begin one; it is over by `deadline` (monotonic) and a short grace."""

    def descriptors(self) -> Sequence[int]:
        """Those to wait for reading on while no call of this session is in progress: what its processes still say."""

    def ready(self, descriptor: int) -> None:
        """There is something to read, while no call of this session is in progress."""

    def ended(self, pid: int, status: int) -> None:
        """A child of the box ended while no call of this session was in progress."""
