"""Stage clocks: they run while an episode's stage works, and stand still while it waits in somebody's queue, or for a
box in place of one that died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Clock:
    """`async with Clock(limit_s) as clock:` cancels its block after `limit_s` seconds of running time, as
    `asyncio.timeout` does (TimeoutError, and `expired()` is true). Made by `Clocks.start`."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._timeout = asyncio.timeout(limit_s)
        self._spent_s = 0.0
        self._since: float | None = None
        """When it began to run; None while it stands still."""
        self._inside = False

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._inside = True
        self._since = time.monotonic()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stand()
        self._inside = False
        await self._timeout.__aexit__(kind, error, trace)

    def expired(self) -> bool:
        """Was it this clock that ended the block?"""
        return self._timeout.expired()

    @property
    def spent_s(self) -> float:
        """Running time so far."""
        return self._spent_s + (0.0 if self._since is None else time.monotonic() - self._since)

    def stand(self) -> None:
        """Stop running."""
        self._spent_s, self._since = self.spent_s, None
        self._reschedule(None)

    def forgive(self, seconds: float) -> None:
        """Take back what was spent in vain, while it stands still."""
        if self._inside:
            self._spent_s = max(0.0, self._spent_s - seconds)

    def go(self) -> None:
        """Run again, where it stood."""
        if self._inside:
            self._since = time.monotonic()
            left = None if self._limit_s is None else self._limit_s - self._spent_s
            self._reschedule(None if left is None else asyncio.get_running_loop().time() + left)

    def _reschedule(self, when: float | None) -> None:
        if self._inside and not self._timeout.expired():
            self._timeout.reschedule(when)


class Clocks:
    """All clocks of one member; they stand still together while it queues, however many queues it is in."""

    def __init__(self) -> None:
        self._clocks: list[Clock] = []
        self._queues = self._reasons = 0
        self._queued_s = 0.0
        self.cut_s = 0.0
        """How long the policy's last turn had been without an answer when it was cut; 0 when none was."""

    def start(self, limit_s: float | None) -> Clock:
        """A clock, to be entered at once by the code that it limits."""
        self._clocks.append(Clock(limit_s))
        return self._clocks[-1]

    @property
    def queued_s(self) -> float:
        """Time spent in `queueing` blocks."""
        return self._queued_s

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Nobody's clock runs inside the block."""
        started = time.monotonic()
        self._queues += 1
        try:
            with self._standing():
                yield
        finally:
            self._queues -= 1
            if not self._queues:
                self._queued_s += time.monotonic() - started

    @contextmanager
    def recovering(self, lost_s: float) -> Iterator[None]:
        """Nobody's clock runs inside the block, nor has it run for the `lost_s` seconds before: a box died."""
        with self._standing():
            for clock in self._clocks:
                clock.forgive(lost_s)
            yield

    @contextmanager
    def _standing(self) -> Iterator[None]:
        self._reasons += 1
        for clock in self._clocks:
            clock.stand()
        try:
            yield
        finally:
            self._reasons -= 1
            if not self._reasons:
                for clock in self._clocks:
                    clock.go()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn of the policy."""
        started, queued_s = time.monotonic(), self._queued_s
        try:
            yield
        except asyncio.CancelledError:
            self.cut_s = time.monotonic() - started - (self._queued_s - queued_s)
            raise
