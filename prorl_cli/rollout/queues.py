"""Whatever an episode may have to wait for in a queue, wrapped so that its clocks stand still meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from prorl_cli.agent import EnginePolicy
from prorl_cli.engine import Generation
from prorl_cli.rollout.clock import Clocks
from prorl_cli.router.client import Lease, LeaseClient
from prorl_cli.tasks import Verifiers


class QueueingLeases(LeaseClient):
    """One member's view of the worker's leases."""

    def __init__(self, leases: LeaseClient, clocks: Clocks) -> None:
        self._leases, self._clocks = leases, clocks

    @asynccontextmanager
    async def lease(
        self, session: str, tokens: int, min_version: int = 0, version: int | None = None
    ) -> AsyncIterator[Lease]:
        """See `LeaseClient.lease`; until it is granted, the member queues."""
        async with AsyncExitStack() as stack:
            with self._clocks.queueing():
                lease = await stack.enter_async_context(self._leases.lease(session, tokens, min_version, version))
            yield lease


class QueueingVerifiers(Verifiers):
    """One member's view of the worker's verifiers; `free` counts those that are idle."""

    def __init__(self, verifiers: Verifiers, free: asyncio.Semaphore, clocks: Clocks) -> None:
        self._verifiers, self._free, self._clocks = verifiers, free, clocks

    async def call(self, function: str, **arguments: Any) -> float:
        """See `Verifiers.call`; until one is free, the member queues."""
        with self._clocks.queueing():
            await self._free.acquire()
        try:
            return await self._verifiers.call(function, **arguments)
        finally:
            self._free.release()


class TimedPolicy:
    """A member's policy; its clocks know since when a turn has been without an answer."""

    def __init__(self, policy: EnginePolicy, clocks: Clocks) -> None:
        self._policy, self._clocks = policy, clocks

    async def generate(self, session: str, prompt_ids: list[int], max_tokens: int, seed: int) -> Generation:
        """See `EnginePolicy.generate`."""
        with self._clocks.turn():
            return await self._policy.generate(session, prompt_ids, max_tokens, seed)
