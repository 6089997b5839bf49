"""An embedded engine at work in a run: waits for weights, serves, and follows every newer version.

A version is read and checked while the old one still serves; then a swap permit, a pause of milliseconds between two
decode steps, the proof, and only then the announcement. Weights that cannot be proved end the process.
"""

from __future__ import annotations

import asyncio
import functools
import time
from contextlib import suppress
from typing import Any

from prorl_cli.engine import weights
from prorl_cli.engine.decoder import Decoder
from prorl_cli.engine.gate import Door, Gate, GateSettings, GateState
from prorl_cli.engine.server import routes
from prorl_cli.engine.swap import (
    ACCOUNT_S,
    DRAIN_S,
    POLL_S,
    Published,
    first,
    newest,
    newest_identity,
    permit,
    release,
    stage,
)
from prorl_cli.engine.thread import DecodeThread
from prorl_cli.errors import ProrlError
from prorl_cli.role import Role


async def follow(role: Role) -> None:
    """The body of role `engine`."""
    role.announce(state="loading")
    role.hear("learner")
    published = await first(role)
    if published is None:
        return
    model = await asyncio.to_thread(weights.build_model, published[0])
    engine = Embedded(role, model)
    await role.serve(engine.routes, guard=functools.partial(Gate, door=engine.door))
    try:
        await engine.swap(published)
        while not role.stopping.is_set():
            await engine.tick()
            await role.nap(POLL_S)
        await engine.drain()
    finally:
        engine.thread.stop()


class Embedded:
    """Model, decode thread and gate of one process."""

    def __init__(self, role: Role, model: Any) -> None:
        self._role = role
        self._model = model
        self._loaded: tuple[int, str] = (-1, "")
        wanted = role.recipe.engine.max_model_len
        limit = min(wanted, getattr(model.config, "max_position_embeddings", wanted))
        settings = GateSettings(
            data_token=role.run.data_token.read_text(),
            admin_token=role.run.admin_token.read_text(),
            vocab_size=model.get_input_embeddings().num_embeddings,
            max_model_len=limit,
        )
        decoder = Decoder(model, slots=role.recipe.engine.slots)
        self.thread = DecodeThread(decoder, threads=role.recipe.engine.threads)
        self.door = Door(settings=settings, facts=self.thread.meter.facts)
        self.routes = routes(self.thread, limit)
        role.spawn(self.thread.run())
        role.spawn(self._account())

    async def tick(self) -> None:
        """Swap if there is something newer (or the same version remade), and say how it goes."""
        meter = self.thread.meter
        self._role.announce(
            tokens_total=meter.tokens_total,
            tokens_per_s=round(meter.tokens_per_s, 1),
            in_flight_tokens=self.door.in_flight_tokens,
        )
        version, lineage = newest_identity(self._role.run)
        # A stale listing, or retention, may show less than what is loaded: never back.
        if self.door.state is not GateState.READY or version < self._loaded[0] or (version, lineage) == self._loaded:
            return
        if published := await newest(self._role):
            await self.swap(published)

    async def swap(self, published: Published) -> None:
        """To a newer version; weights that cannot be proved put this engine out for good."""
        try:
            await self._swap(published)
        except ProrlError:
            self.door.state = GateState.FAILED
            await self._role.announce_now(state="failed")
            raise

    async def _swap(self, published: Published) -> None:
        """Stage, ask for a permit (not for the first version), load between two steps, prove, announce."""
        start = time.monotonic()
        staged, manifest = await stage(self._role, published, weights.stage)
        waiting = time.monotonic()
        if self._loaded[0] >= 0 and not await permit(self._role, staged.version):
            return
        pausing = time.monotonic()
        await self._load(staged)
        self._loaded = (staged.version, manifest.lineage)
        loaded = time.monotonic()
        self._role.metrics.add(
            "swap", version=staged.version, stage_s=waiting - start, permit_s=pausing - waiting,
            pause_s=loaded - pausing, in_flight=self.door.in_flight_requests,
        )  # fmt: skip
        await self._role.announce_now(state=self.door.state.value, version=staged.version)
        self._role.doorbell.ring()
        await release(self._role)

    async def _load(self, staged: weights.Staged) -> None:
        self.door.state = GateState.PAUSED
        await self.thread.reload(staged.version, functools.partial(weights.load, self._model, staged))
        self.door.version = staged.version
        # A drain may have been asked for meanwhile.
        if self.door.state is GateState.PAUSED:
            self.door.state = GateState.READY

    async def drain(self) -> None:
        """Let what is in flight finish, for a while; the rest is answered with what it has."""
        self.door.drain()
        self._role.announce(state="draining")
        until = time.monotonic() + DRAIN_S
        with self._role.waiting("requests in flight"):
            while self.door.in_flight_requests and time.monotonic() < until:
                await asyncio.sleep(0.02)
            self.thread.stop()
            while self.door.in_flight_requests and time.monotonic() < until + 1:
                await asyncio.sleep(0.02)

    async def _account(self) -> None:
        """Count decoding as this process's work, in slices short enough for `status`."""
        while True:
            await self.thread.busy.wait()
            with self._role.busy(), suppress(TimeoutError):
                async with asyncio.timeout(ACCOUNT_S):
                    await self.thread.idle.wait()
