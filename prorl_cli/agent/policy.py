"""`EnginePolicy`: turns written by the run's engines, a lease a turn. The agent room's only tie to router and engine.

An engine that fails is left for another within a budget; a request that an engine refused as bad is never retried.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from prorl_cli.engine.client import GenerateRequest, Generation, generate
from prorl_cli.errors import InfraError
from prorl_cli.router.client import LeaseClient
from prorl_cli.trajectory import ErrorClass
from prorl_cli.wire import Client

TRIES = 5
"""Engines tried for one turn."""
BACKOFF_S = 0.2
"""Before the second try, doubled for each later one: a dying engine takes a moment to be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How every turn of an episode is sampled, and by which weights."""

    temperature: float
    stop_ids: tuple[int, ...]
    min_version: int = 0
    version: int | None = None
    """Exactly these weights, as an evaluation wants; None = `min_version` or newer."""
    deadline_s: float = 600.0
    """Of one generation; an engine that takes longer is given up as failed."""


class EnginePolicy:
    """A `Policy`; one an episode. `engine` names the engine of the last turn."""

    def __init__(self, client: Client, leases: LeaseClient, sampling: Sampling) -> None:
        self._client, self._leases, self._sampling = client, leases, sampling
        self.engine = ""

    async def generate(self, session: str, prompt_ids: list[int], max_tokens: int, seed: int) -> Generation:
        """One turn. `InfraError(engine)` when no engine could; `InfraError(internal)` when the request is bad."""
        for attempt in range(TRIES):
            try:
                return await self._once(session, prompt_ids, max_tokens, seed)
            except InfraError as error:
                # Without an engine there was no lease, and the lease client has waited for one long enough.
                engines_fault = self.engine and error.error_class == ErrorClass.ENGINE
                if not engines_fault or attempt == TRIES - 1:
                    raise
            await asyncio.sleep(BACKOFF_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def _once(self, session: str, prompt_ids: list[int], max_tokens: int, seed: int) -> Generation:
        wanted, self.engine = self._sampling, ""
        request = GenerateRequest(
            request_id=f"{session}-{secrets.token_hex(4)}",
            token_ids=prompt_ids,
            max_tokens=max_tokens,
            seed=seed,
            temperature=wanted.temperature,
            stop_token_ids=wanted.stop_ids,
        )
        async with self._leases.lease(session, len(prompt_ids), wanted.min_version, wanted.version) as lease:
            self.engine = lease.engine
            generation = await generate(self._client, lease.engine_url, request, wanted.deadline_s)
            lease.used(len(generation.token_ids))
        return generation
