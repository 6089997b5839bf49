"""A box as its zygote knows it, and what a kind of box must offer. Declarations only; the kinds are `forked` and
`launched`."""

from __future__ import annotations

import math
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True, eq=False)
class Box:
    """`pid` is the zygote's child; `hand` is how the box is given its socket. It is `up` once it waits for that.

    `number` is 0 while nobody has it; past `leave_by` it is killed. `inner` is its first process, where that is not
    `pid`; `errors` the file that its launcher complains to, if any; `folder` what it writes to on the node's disk;
    `permit` holds a place at the node's gate until it is up. `wanted` is the number of who waits for this very box, and
    the socket that it is to get.
    """

    pid: int
    hand: socket.socket
    up: bool = True
    number: int = 0
    leave_by: float = math.inf
    inner: int = 0
    errors: int = -1
    folder: str = ""
    permit: list[int] = field(default_factory=list)
    wanted: tuple[int, int] | None = None


class Kind(Protocol):
    """One way to make boxes; `tools` are the names they serve, `note` what a worker should know of the node.

    Without a message for `quiet_ms` another spare is made: not while a box just started wants the processor; after
    `haste_ms` where none is left, for starts may come back to back.
    """

    tools: list[str]
    note: str
    quiet_ms: int
    haste_ms: int
    look_ms: int | None

    def prepare(self) -> None:
        """Once, before the first box."""

    def sound(self) -> bool:
        """Whether what all boxes stand on is still there; asked every `look_ms` at least."""

    def make(self, like: str = "") -> Box | None:
        """Another box, up or on its way, which begins with what a box has written to its folder `like`; None where too
        many of this node are on their way. Raises `OSError`."""

    def rise(self, box: Box) -> bool:
        """Take in what a box on its way has said; whether it is up."""

    def end(self, box: Box) -> None:
        """Its worker is done with it."""

    def kill(self, box: Box) -> None:
        """It is over its time."""

    def bury(self, box: Box, status: int, living: Collection[int]) -> tuple[int, str]:
        """After its end: leave nothing of it. Its wait status, and why it never came up if it did not."""

    def orphaned(self, pid: int, living: Collection[int]) -> None:
        """Process `pid`, which was no box, has ended below this one."""

    def leave(self, boxes: Collection[Box]) -> None:
        """End all of them and all that is theirs."""
