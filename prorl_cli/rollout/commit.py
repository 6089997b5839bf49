"""Group commit: finished trajectories become durable together, at most every 50 ms, in one thread off the loop."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable

import msgspec

from prorl_cli.spool.trajectories import TrajectoryWriter
from prorl_cli.trajectory import ErrorClass, StopReason, Trajectory

EVERY_S = 0.05
"""Between two commits: an fsync costs milliseconds, and nobody needs a record sooner."""
UNSOUND = (ValueError, TypeError, struct.error)
"""How a record is refused: its tokens do not hold together, or a handler put something into it that is no data."""

_log = logging.getLogger(__name__)


class Committer:
    """Owns the writer. `committed` is called in the loop after each commit (it rings the doorbell)."""

    def __init__(self, writer: TrajectoryWriter, committed: Callable[[], None]) -> None:
        self._writer = writer
        self._committed = committed
        self._waiting: list[Trajectory] = []
        self._some = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def add(self, trajectory: Trajectory) -> None:
        """Have it committed soon."""
        self._waiting.append(trajectory)
        self._some.set()

    async def run(self) -> None:
        """Commit what accumulates, for ever. What the writer raises ends it: a worker that cannot write is done."""
        while True:
            await self._some.wait()
            await self.flush()
            await asyncio.sleep(EVERY_S)

    async def flush(self) -> None:
        """Return once everything added is durable; not broken off by cancellation."""
        await asyncio.shield(asyncio.ensure_future(self._flush()))

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            batch, self._waiting = self._waiting, []
            self._some.clear()
            if batch:
                await asyncio.to_thread(self._write, batch)
                self._committed()

    def _write(self, batch: list[Trajectory]) -> None:
        for trajectory in batch:
            try:
                self._writer.append(trajectory)
            except UNSOUND as error:
                _log.error("trajectory %s: %s", trajectory.id, error)
                self._writer.append(refused(trajectory, str(error)))
        self._writer.commit()


def refused(trajectory: Trajectory, why: str) -> Trajectory:
    """The record in place of one whose tokens do not hold together: a defect, in words, without the tokens."""
    return msgspec.structs.replace(
        trajectory, sequences=(), tool_calls=(), answer="", reward=0.0, reward_parts={},
        stop_reason=StopReason.NONE, error_class=ErrorClass.INTERNAL, error=why,
    )  # fmt: skip
