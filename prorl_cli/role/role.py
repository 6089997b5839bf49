"""What a role's body works with. Reads and writes only its own endpoint; everything else is the body's affair."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

from prorl_cli.metrics import Recorder
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import Incarnation, RunDir
from prorl_cli.spool.members import (
    BEAT_S,
    SLOT,
    Endpoint,
    ensure_current,
    live,
    read_endpoints,
    read_obituaries,
    write_endpoint,
)
from prorl_cli.wire import Client, Doorbell, listen
from prorl_cli.wire.address import LOOPBACK, choose
from prorl_cli.wire.server import App, Guard, Server

PEERS_S = 0.5
"""How long a listing of the endpoints is good for."""


class Role:
    """One incarnation at work; entered once, by `main`."""

    def __init__(self, run: RunDir, recipe: Recipe, incarnation: Incarnation) -> None:
        self.run = run
        self.recipe = recipe
        self.attempt = incarnation.attempt
        self.name = str(incarnation)
        self.node = incarnation.node
        self.log = logging.getLogger(incarnation.role)
        self.metrics = Recorder(run.metric(self.name))
        self.client = Client(run.data_token.read_text(), run.certificate)
        self.doorbell = Doorbell()
        self.stopping = asyncio.Event()
        self.wake = asyncio.Event()
        self._endpoint = Endpoint(
            incarnation=self.name, role=incarnation.role, node=incarnation.node, attempt=incarnation.attempt,
            pid=os.getpid(), pid_started=psutil.Process().create_time(), state="starting",
            slot=os.environ.get(SLOT, ""),
        )  # fmt: skip
        self._started = time.monotonic()
        self._busy_s = 0.0
        self._waits: list[tuple[str, float]] = []
        self._heard: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: tuple[float, list[Endpoint]] = (-PEERS_S, [])
        self._server: Server | None = None
        self._publishing = asyncio.Lock()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        await self._publish_endpoint()
        self.spawn(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *self._heard.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.broken.done() and not self.broken.cancelled():
            self.broken.exception()
        self.doorbell.close()
        if self._server is not None:
            await self._server.stop()
        await self.client.__aexit__(kind, error, trace)
        if error is None:
            self.announce(state="ended")
            await self._publish_endpoint()

    # ── identity and peers ────────────────────────────────────────────────────────────────────────────────

    def fence(self) -> None:
        """Raise `Fenced` if a newer attempt of the run exists: called before every publication."""
        ensure_current(self.run, self.attempt)

    def endpoints(self, kind: str) -> list[Endpoint]:
        """Live peers of one role and of this attempt, as listed at most `PEERS_S` ago."""
        now = time.monotonic()
        if now - self._peers[0] >= PEERS_S:
            found = live(read_endpoints(self.run, self.attempt), read_obituaries(self.run), self.attempt)
            self._peers = (now, found)
        return [peer for peer in self._peers[1] if peer.role == kind]

    def announce(self, *, state: str | None = None, version: int | None = None, step: int | None = None,
                 **facts: float | int | str) -> None:  # fmt: skip
        """Change what the next heartbeat says of this process."""
        given = {"state": state, "version": version, "step": step}
        changes = {key: value for key, value in given.items() if value is not None}
        self._endpoint = msgspec.structs.replace(self._endpoint, **changes, facts={**self._endpoint.facts, **facts})

    async def announce_now(self, *, url: str = "", **facts: Any) -> None:
        """`announce`, on disk before it returns. `url`: where another process listens for this one."""
        if url:
            self._endpoint = msgspec.structs.replace(self._endpoint, url=url)
        self.announce(**facts)
        await self._publish_endpoint()

    # ── serving and hearing ───────────────────────────────────────────────────────────────────────────────

    async def serve(self, routes: list[Any], *, guard: Callable[[App], App] | None = None) -> str:
        """Serve `routes` and the doorbell behind the data token (or behind `guard`); returns and announces the URL."""
        from starlette.applications import Starlette

        app: App = Starlette(routes=[*routes, self.doorbell.route()])
        wrapped = guard(app) if guard is not None else Guard(app, self.run.data_token.read_text())
        host = await asyncio.to_thread(self.address)
        self._server = Server(wrapped, host, self.run.certificate, self.run.private_key)
        url = await self._server.start()
        self._endpoint = msgspec.structs.replace(self._endpoint, url=url)
        await self._publish_endpoint()
        return url

    def address(self) -> str:
        """The address of this machine that the run's other processes reach it at."""
        cluster = self.recipe.cluster
        return LOOPBACK if cluster.executor == "local" else choose(os.environ, cluster.interface)

    def hear(self, *kinds: str) -> None:
        """From now on `wake` is set whenever a live peer of these roles rings its doorbell, or a new one appears."""
        self.spawn(self._hear(kinds))

    async def nap(self, seconds: float) -> None:
        """Until `wake`, `stopping` or the time is up; clears `wake`."""
        waits = [asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(self.stopping.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.wake.clear()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` beside the body; if it fails, the role ends with its error."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    # ── what status shows ─────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Name what this process waits for, for as long as the block lasts."""
        self._waits.append((what, time.monotonic()))
        try:
            yield
        finally:
            self._waits.pop()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the block's time as work (fact `busy_s`)."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._busy_s += time.monotonic() - start

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self.broken.done():
            self.broken.set_exception(error)

    async def _publish_endpoint(self) -> None:
        async with self._publishing:
            now = time.monotonic()
            wait, since = self._waits[-1] if self._waits else ("", now)
            facts = {
                **self._endpoint.facts,
                "busy_s": round(self._busy_s, 3),
                "cpu_s": round(time.process_time(), 3),
                "up_s": round(now - self._started, 3),
            }
            self._endpoint = msgspec.structs.replace(
                self._endpoint, beat=self._endpoint.beat + 1, waiting=wait, waiting_s=round(now - since, 3), facts=facts
            )
            await asyncio.to_thread(write_endpoint, self.run, self._endpoint)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self.fence()
            await self._publish_endpoint()

    async def _hear(self, kinds: tuple[str, ...]) -> None:
        while True:
            for peer in (peer for kind in kinds for peer in self.endpoints(kind)):
                if peer.url and peer.incarnation not in self._heard:
                    self._heard[peer.incarnation] = asyncio.create_task(listen(self.client, peer.url, self.wake))
            await asyncio.sleep(PEERS_S)
            ended = [name for name, task in self._heard.items() if task.done()]
            for name in ended:
                with suppress(asyncio.CancelledError):
                    self._heard.pop(name).result()
