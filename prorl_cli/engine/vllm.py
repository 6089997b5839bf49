"""A vLLM engine at work in a run: starts the server on the newest weights, swaps to every newer version, proves each.

A version is staged on this node's disk while the old one serves. Then a permit, a pause between two steps, a reload
from the copy, a cache reset whose success is checked, and the canary: logprobs as the publisher had them. Until then
the gate holds every answer back. What cannot be proved in two tries ends the server and this process; a restart
begins with whatever is newest then.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from prorl_cli.engine.gate import GateSettings, GateState
from prorl_cli.engine.staging import Staged, forget_others, read_shape, scratch, stage
from prorl_cli.engine.swap import (
    ACCOUNT_S,
    DRAIN_S,
    POLL_S,
    Published,
    Unproved,
    first,
    newest,
    newest_identity,
    permit,
    release,
    renewed,
)
from prorl_cli.engine.swap import stage as staged_by
from prorl_cli.engine.vllm_api import Api
from prorl_cli.engine.vllm_server import Setting, VllmProcess, require, reserve, write_gate
from prorl_cli.errors import ProrlError
from prorl_cli.role import Role
from prorl_cli.wire import Client, WireError

HEALTH_EVERY_S = 10.0
"""Between two calls that go through to the engine's workers: the server's own /health only says that they once ran."""

SPEED_WINDOW = 10
"""Looks over which the speed is measured: answers count when they are complete."""


class ServerEnded(ProrlError):
    """The server is gone, or hangs; only a new one helps."""


async def follow(role: Role) -> None:
    """The body of role `engine`."""
    require()
    role.announce(state="loading")
    role.hear("learner")
    published = await first(role)
    if published is None:
        return
    admin = Client(role.run.admin_token.read_text(), role.run.certificate)
    with scratch() as folder:
        async with admin, VllmEngine(role, admin, folder).serving(published) as engine:
            if await _until_stopped(role, engine):
                await engine.drain()


async def _until_stopped(role: Role, engine: VllmEngine) -> bool:
    """Work until told to stop; whether requests in flight can finish. A swap is given up: whoever signals a whole step
    signals the server too, and a server that ends does not finish a reload."""
    work, stop = asyncio.ensure_future(engine.work()), asyncio.ensure_future(role.stopping.wait())
    try:
        await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
        return not engine.swapping
    finally:
        for task in (work, stop):
            task.cancel()
        await asyncio.gather(work, stop, return_exceptions=True)


class VllmEngine:
    """One server and what it holds."""

    def __init__(self, role: Role, admin: Client, folder: Path) -> None:
        self._role = role
        self._admin = admin
        self._scratch = folder
        self._loaded: tuple[int, str] = (-1, "")
        self._in_flight = 0
        self.swapping = False
        self._looks: deque[tuple[int, float]] = deque(maxlen=SPEED_WINDOW)
        self._healthy_at = 0.0
        self._api: Api
        self._stage = functools.partial(stage, folder / "weights")

    # ── start and end ─────────────────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def serving(self, published: Published) -> AsyncIterator[VllmEngine]:
        """With a server that has proved the first version, unless this process has to stop before; nothing of it is
        left after the block."""
        staged, _ = await staged_by(self._role, published, self._stage)
        host = await asyncio.to_thread(self._role.address)
        with reserve(host) as held:
            setting = self._setting(staged, host, held.getsockname()[1])
            self._api = self._connected(setting)
            process = await VllmProcess.start(self._role.recipe.engine, setting)
            watch = self._role.spawn(self._watch(process))
            try:
                await self._begin(staged, setting, process)
                self._role.spawn(self._account())
                yield self
            finally:
                watch.cancel()
                await process.end()

    def _setting(self, staged: Staged, host: str, port: int) -> Setting:
        shape, run, wanted = read_shape(staged.folder), self._role.run, self._role.recipe.engine.max_model_len
        setting = Setting(
            host=host, port=port, certificate=run.certificate, key=run.private_key, weights=staged.folder,
            scratch=self._scratch, max_model_len=min(wanted, shape.max_position_embeddings or wanted),
        )  # fmt: skip
        gate = GateSettings(
            data_token=run.data_token.read_text(), admin_token=run.admin_token.read_text(),
            vocab_size=shape.vocab_size, max_model_len=setting.max_model_len,
        )  # fmt: skip
        write_gate(setting, gate)
        return setting

    def _connected(self, setting: Setting) -> Api:
        exact = self._role.recipe.engine.dtype == "float32"
        # The canary's answer is one token.
        return Api(self._role.client, self._admin, setting.url, exact=exact, room=setting.max_model_len - 1)

    async def _begin(self, staged: Staged, setting: Setting, process: VllmProcess) -> None:
        """Until the first version is proved and said, or this process has to stop."""
        started = time.monotonic()
        with self._role.waiting("the vLLM server to start"):
            if not await self._api.up(self._role.stopping):
                return
        process.forget_shared_memory()
        await self._role.announce_now(url=setting.url)
        await self._proved(staged, self._start, tries=1)
        self._role.metrics.add("start", version=staged.version, start_s=time.monotonic() - started)
        await self._settle(staged)

    async def _watch(self, process: VllmProcess) -> None:
        code = await process.wait()
        if not self._role.stopping.is_set():
            raise ServerEnded(f"the vLLM server ended with code {code}; its words are above")

    async def drain(self) -> None:
        """Let what is in flight finish, for a while."""
        self._role.announce(state="draining")
        with self._role.waiting("requests in flight"), suppress(WireError, TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._api.drain()
                while (await self._api.gate())["in_flight_requests"]:
                    await asyncio.sleep(0.1)

    # ── at work ───────────────────────────────────────────────────────────────────────────────────────────

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            await self.tick()
            await self._role.nap(POLL_S)

    async def tick(self) -> None:
        """Say how it goes, see that the workers answer, and swap if there is something newer."""
        await self._look()
        version, lineage = newest_identity(self._role.run)
        # A stale listing, or retention, may show less than what is loaded: never back.
        if version < self._loaded[0] or (version, lineage) == self._loaded:
            return
        if published := await newest(self._role):
            await self._swap(published)

    async def _look(self) -> None:
        try:
            gate = await self._api.gate()
            if time.monotonic() - self._healthy_at > HEALTH_EVERY_S:
                await self._api.alive()
                self._healthy_at = time.monotonic()
        except WireError as error:
            raise ServerEnded(f"the vLLM server does not answer: {error}") from error
        self._in_flight = gate["in_flight_requests"]
        self._looks.append((gate["tokens_total"], gate["busy_s"]))
        self._role.announce(
            tokens_total=gate["tokens_total"],
            tokens_per_s=round(_speed(self._looks), 1),
            in_flight_tokens=gate["in_flight_tokens"],
            cache_used=round(gate.get("cache_used", 0.0), 3),
        )

    async def _account(self) -> None:
        """Count what is in flight as this process's work, in slices short enough for `status`."""
        while True:
            if self._in_flight:
                with self._role.busy():
                    await asyncio.sleep(ACCOUNT_S)
            else:
                await asyncio.sleep(ACCOUNT_S)

    # ── a swap ────────────────────────────────────────────────────────────────────────────────────────────

    async def _swap(self, published: Published) -> None:
        start = time.monotonic()
        staged, _ = await staged_by(self._role, published, self._stage)
        waiting = time.monotonic()
        if not await permit(self._role, staged.version):
            return
        pausing = time.monotonic()
        self.swapping = True
        async with renewed(self._role, staged.version):
            await self._proved(staged, self._reload, tries=2)
        self._role.metrics.add(
            "swap", version=staged.version, stage_s=waiting - start, permit_s=pausing - waiting,
            pause_s=time.monotonic() - pausing, in_flight=self._in_flight,
        )  # fmt: skip
        await self._settle(staged)
        self.swapping = False
        await release(self._role)

    async def _reload(self, staged: Staged) -> None:
        await self._api.move(GateState.PAUSED, self._loaded[0])
        await self._api.reload(staged.version, staged.folder)
        await self._api.prove(staged.canary, resume=True)

    async def _start(self, staged: Staged) -> None:
        await self._api.label(staged.version)
        await self._api.prove(staged.canary)

    async def _proved(self, staged: Staged, attempt: Callable[[Staged], Awaitable[None]], tries: int) -> None:
        """Weights that cannot be proved put this engine out for good."""
        for left in reversed(range(tries)):
            try:
                await attempt(staged)
                return
            except (WireError, Unproved) as error:
                if not left:
                    await self._out()
                    raise Unproved(f"version {staged.version} is not served: {error}") from error
                self._role.log.warning("version %d: %s; once more", staged.version, error)

    async def _out(self) -> None:
        with suppress(WireError):
            await self._api.move(GateState.FAILED, self._loaded[0])
        await self._role.announce_now(state="failed")

    async def _settle(self, staged: Staged) -> None:
        """The version is proved: let answers out, and say so."""
        await self._api.move(GateState.READY, staged.version)
        self._loaded = (staged.version, staged.lineage)
        await self._role.announce_now(state=GateState.READY.value, version=staged.version)
        await asyncio.to_thread(forget_others, staged)


def _speed(looks: deque[tuple[int, float]]) -> float:
    """Tokens per busy second over the window."""
    (first_tokens, first_busy), (last_tokens, last_busy) = looks[0], looks[-1]
    return (last_tokens - first_tokens) / (last_busy - first_busy) if last_busy > first_busy else 0.0
