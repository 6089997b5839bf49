"""The worker's process: requests from its log into the pipeline, finished members into its own log.

A request seen twice is one request. A cancelled member leaves no record: the coordinator has struck it off already.
A drained worker starts nothing more and stays, so that its log can be read to the end. SIGUSR2 drains it without an
order, when its node is wanted back. SIGTERM ends what runs and commits what is finished.
"""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any

from prorl_cli.role import Role
from prorl_cli.rollout.commit import Committer
from prorl_cli.rollout.member import Member
from prorl_cli.rollout.parts import Parts, first_weights, open_parts
from prorl_cli.rollout.pipeline import Key, Pipeline, Result, Work
from prorl_cli.spool.requests import RequestFollower
from prorl_cli.spool.trajectories import TrajectoryWriter
from prorl_cli.trajectory import Cancel, Drain, GroupRequest, Request, Trajectory

POLL_S = 1.0
"""Slow poll of the request log; the coordinator's doorbell is faster."""
METRICS_S = 10.0
"""Between two rows of this worker's metrics."""


async def body(role: Role) -> None:
    """Work until told to stop."""
    weights = await first_weights(role)
    if weights is None:
        return
    async with open_parts(role, weights) as parts:
        await Worker(role, parts).work()


class Worker:
    """One process's work."""

    def __init__(self, role: Role, parts: Parts) -> None:
        self._role, self._parts = role, parts
        self._pipeline = Pipeline(role.recipe.rollout)
        writer = TrajectoryWriter(role.run, role.name, parts.vocab_size)
        self._committer = Committer(writer, role.doorbell.ring)
        self._totals: dict[str, float] = {}
        self._measured: tuple[float, dict[str, float]] = (time.monotonic(), {})

    async def work(self) -> None:
        """Follow the requests; at the end cancel what runs and commit what is finished."""
        role, follower = self._role, RequestFollower(self._role.run, self._role.name)
        await role.serve([])
        role.hear("coordinator")
        role.spawn(self._committer.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._leave)
        await role.announce_now(state="ready", runtime=self._parts.boxes.runtime)
        try:
            while not role.stopping.is_set():
                for request in await asyncio.to_thread(follower.poll):
                    self.take(request)
                self._show()
                await role.nap(POLL_S)
        finally:
            await self._pipeline.close()
            await self._committer.flush()
            self._show()

    def take(self, request: Request) -> None:
        """Act on one record of the request log."""
        match request:
            case GroupRequest():
                for member, tried in zip(request.members, request.tries, strict=True):
                    self._submit(request, member, tried)
            case Cancel():
                self._pipeline.cancel(request.purpose, request.group, request.members)
            case Drain():
                self._role.spawn(self._drain(request.deadline_s))

    def _submit(self, request: GroupRequest, number: int, tried: int) -> None:
        key = Key(purpose=request.purpose, group=request.group, member=number, tried=tried)
        member = Member(key, request, self._role.recipe, self._parts, self._role.client)
        handler = self._parts.handlers[request.task.task]
        finished = partial(self._finished, member)
        self._pipeline.submit(Work(key=key, handler=handler, prepare=member.prepare, finished=finished))

    def _finished(self, member: Member, result: Result) -> None:
        record = member.record(result, self._role.name)
        for name, value in counted(record).items():
            self._totals[name] = self._totals.get(name, 0) + value
        if record.error_class is not None:
            self._role.log.warning("%s failed: %s", record.id, record.error)
        self._committer.add(record)

    def _leave(self) -> None:
        self._role.spawn(self._drain(self._role.recipe.cluster.drain))

    async def _drain(self, deadline_s: float) -> None:
        self._role.announce(state="draining")
        await self._pipeline.drain(deadline_s)
        await self._committer.flush()
        self._role.announce(state="drained")

    def _show(self) -> None:
        facts: dict[str, Any] = {name: round(value, 3) for name, value in self._totals.items()}
        facts |= self._pipeline.counts()
        self._role.announce(**facts)
        now, (before, then) = time.monotonic(), self._measured
        if now - before >= METRICS_S and self._totals != then:
            since = {name: round(value - then.get(name, 0.0), 3) for name, value in self._totals.items()}
            self._role.metrics.add("rollout", seconds=round(now - before, 3), **self._pipeline.counts(), **since)
            self._measured = (now, dict(self._totals))


def counted(record: Trajectory) -> dict[str, float]:
    """What one record adds to the worker's totals; seconds are summed over members."""
    timings = record.timings
    outcome = "finished" if record.error_class is None else f"failed_{record.error_class}"
    return {
        outcome: 1, "tokens": record.tokens, "authored": record.authored, "queue_s": timings.queue,
        "init_s": timings.init, "run_s": timings.run, "llm_s": timings.llm, "tool_s": timings.tool,
        "eval_s": timings.eval, "replay_s": timings.replay, "replayed": record.replays > 0, "diverged": record.diverged,
    }  # fmt: skip
