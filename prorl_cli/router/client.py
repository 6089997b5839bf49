"""A lease per policy turn, for whoever generates: finds the live router, survives its restart, batches releases.

    leases = LeaseClient(role)
    async with leases.lease(session, tokens, min_version=3) as lease:
        ...  # generate on lease.engine_url
        lease.used(tokens_generated)

A block that ends with an error of the engine (`InfraError` of class `engine`, or no usable answer) reports it, so
that the next lease of the session goes elsewhere. What a lost release leaves behind ends by the lease's ttl.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from prorl_cli.errors import InfraError
from prorl_cli.spool.members import Endpoint
from prorl_cli.trajectory import ErrorClass
from prorl_cli.wire import Client, Refused, TimedOut, Unreachable, WireError

HOLD_S = 10.0
"""How long the router may hold a request; the answer is then asked for again."""
CALL_S = 5.0
"""Beyond the hold: how long a router may take to answer at all."""
RETRY_S = 0.1
"""Between two tries while no router is there."""
FLUSH_S = 0.1
"""A release waits this long for an acquire to travel with."""
RENEW_EVERY_S = 5.0
"""How often open leases are looked over; one is renewed when a third of its ttl is gone."""
HELD = 503
"""The router held the request as long as it may; its text says what is missing."""
NOT_A_ROUTER = (401, 404, 405)
"""Somebody else listens on a dead router's port."""


class Finder(Protocol):
    """What the client needs of a `Role`."""

    client: Client

    def endpoints(self, kind: str) -> list[Endpoint]:
        """Live peers of one role."""
        ...


@dataclass(slots=True, kw_only=True)
class Lease:
    """Permission to run one turn on one engine."""

    id: str
    engine: str
    engine_url: str
    version: int
    ttl_s: float
    started: float = field(default_factory=time.monotonic)
    renewed: float = field(default_factory=time.monotonic)
    tokens: int = 0

    def used(self, tokens: int) -> None:
        """How many tokens were generated; with the time taken this measures the engine's speed."""
        self.tokens = tokens


class LeaseClient:
    """One a process. `deadline_s` bounds the wait for a lease (`InfraError` of class `engine` after it)."""

    def __init__(self, finder: Finder, *, deadline_s: float = 300.0) -> None:
        self._finder = finder
        self._deadline_s = deadline_s
        self._url = ""
        self._finished: list[dict[str, Any]] = []
        self._open: dict[str, Lease] = {}
        self._flushing: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lease(
        self, session: str, tokens: int, min_version: int = 0, version: int | None = None
    ) -> AsyncIterator[Lease]:
        """Hold a lease for the block; waits for an engine of the version asked for, up to the deadline."""
        ask = {"session": session, "tokens": tokens, "min_version": min_version, "version": version}
        lease = await self._acquire(ask)
        self._open[lease.id] = lease
        self._keep_renewing()
        ok = True
        try:
            yield lease
        except BaseException as error:
            ok = not blames_engine(error)
            raise
        finally:
            del self._open[lease.id]
            self._finish(lease, ok)

    async def close(self) -> None:
        """Give back what is finished; for the end of the process."""
        for task in (self._flushing, self._renewing):
            if task is not None:
                task.cancel()
        with suppress(WireError):
            await self._flush()

    # ── acquire ───────────────────────────────────────────────────────────────────────────────────────────

    async def _acquire(self, ask: dict[str, Any]) -> Lease:
        until = time.monotonic() + self._deadline_s
        reason = ""
        while (left := until - time.monotonic()) > 0:
            try:
                return await self._ask(ask, left)
            except Refused as error:
                reason = self._refused(error)
                if error.status == HELD:
                    continue
            except (Unreachable, TimedOut) as error:
                self._url, reason = "", str(error)
            await asyncio.sleep(RETRY_S)
        raise InfraError(ErrorClass.ENGINE, f"no lease within {self._deadline_s:g} s: {reason}")

    async def _ask(self, ask: dict[str, Any], left: float) -> Lease:
        url, hold = f"{self._find()}/leases", min(HOLD_S, left)
        release, self._finished = self._finished, []
        body = {**ask, "release": release, "wait_s": hold}
        call = asyncio.ensure_future(self._finder.client.call("POST", url, body, deadline_s=hold + CALL_S))
        try:
            return _lease(await asyncio.shield(call))
        except asyncio.CancelledError:
            # The grant may be on its way already: it is given back when it comes.
            call.add_done_callback(self._give_back)
            raise

    def _give_back(self, call: asyncio.Future[dict[str, Any]]) -> None:
        if not call.cancelled() and call.exception() is None:
            self._finish(_lease(call.result()), ok=True)

    def _refused(self, error: Refused) -> str:
        if error.status in NOT_A_ROUTER:
            self._url = ""
        elif error.status != HELD:
            raise InfraError(ErrorClass.INTERNAL, f"the router refused a lease: {error}") from error
        return error.text

    def _find(self) -> str:
        """The router in use, or the youngest live one; `Unreachable` while there is none."""
        if not self._url:
            found = [peer for peer in self._finder.endpoints("router") if peer.url]
            if not found:
                raise Unreachable("no router is there")
            self._url = max(found, key=lambda peer: peer.pid_started).url
        return self._url

    # ── release ───────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, lease: Lease, ok: bool) -> None:
        seconds = time.monotonic() - lease.started
        self._finished.append({"lease": lease.id, "tokens": lease.tokens, "seconds": seconds, "ok": ok})
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_later())

    async def _flush_later(self) -> None:
        while self._finished:
            await asyncio.sleep(FLUSH_S)
            with suppress(WireError):
                await self._flush()

    async def _flush(self) -> None:
        """Send what no acquire has taken along. What cannot be sent is dropped: its ttl ends it."""
        release, self._finished = self._finished, []
        if release:
            url = f"{self._find()}/leases/release"
            await self._finder.client.call("POST", url, {"release": release}, deadline_s=CALL_S)

    # ── renew ─────────────────────────────────────────────────────────────────────────────────────────────

    def _keep_renewing(self) -> None:
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        while self._open:
            await asyncio.sleep(RENEW_EVERY_S)
            now = time.monotonic()
            for lease in [lease for lease in self._open.values() if now - lease.renewed > lease.ttl_s / 3]:
                lease.renewed = now
                with suppress(WireError):
                    await self._finder.client.call("POST", f"{self._find()}/leases/{lease.id}/renew", deadline_s=CALL_S)


def blames_engine(error: BaseException) -> bool:
    """Is this the engine's failure? A cancelled turn, or a request it rightly refused (4xx), is not."""
    if isinstance(error, InfraError):
        return error.error_class == ErrorClass.ENGINE
    if isinstance(error, Refused):
        return error.status >= 500
    return isinstance(error, WireError)


def _lease(answer: dict[str, Any]) -> Lease:
    return Lease(
        id=answer["lease"], engine=answer["engine"], engine_url=answer["engine_url"],
        version=answer["version"], ttl_s=answer["ttl_s"],
    )  # fmt: skip
