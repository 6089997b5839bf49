"""The router's process: the pure `Router` behind HTTP, fed by the gates of the engines of this run.

Nothing here is durable. After a restart the first poll of the gates rebuilds versions and load before the first
lease is granted; leases of the process before are counted through their engine's own in-flight tokens.
Called by `prorl_cli.router.client`, by engines (permits), and by `python -m prorl_cli.router RUN_DIR`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from contextlib import ExitStack, closing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prorl_cli.role import Role
from prorl_cli.router.state import LEASE_TTL_S, PERMIT_TTL_S, Ask, Gate, Grant, Release, Router
from prorl_cli.spool.members import Endpoint
from prorl_cli.wire import Client, WireError

POLL_S = 1.0
"""Between two looks at every gate."""
HURRY_POLL_S = 0.2
"""While an engine has missed a beat (the second miss decides) or requests are on hold."""
GATE_DEADLINE_S = 2.0
"""A gate answers from its event loop, but a busy machine may keep that waiting."""
HOLD_S = 10.0
"""Longest hold of a lease request that no engine can serve yet."""


class LeaseBody(msgspec.Struct, frozen=True):
    """Body of `POST /leases`; `release` carries the leases that the client has finished meanwhile."""

    session: str
    tokens: int
    min_version: int = 0
    version: int | None = None
    release: tuple[Release, ...] = ()
    wait_s: float = HOLD_S


class ReleaseBody(msgspec.Struct, frozen=True):
    """Body of `POST /leases/release`."""

    release: tuple[Release, ...]


class PermitBody(msgspec.Struct, frozen=True):
    """Body of `POST /permits`, and of `POST /permits/release` (without `version`)."""

    engine: str
    version: int = -1


class GateAnswer(msgspec.Struct, frozen=True):
    """The fields of `GET /gate` that decide; others are ignored."""

    state: str
    version: int
    in_flight_tokens: int = 0


class Service:
    """Routes and gate polling around one `Router`; sets `wake` when a gate is worth a look before its turn."""

    def __init__(self, router: Router, client: Client, wake: asyncio.Event) -> None:
        self._router = router
        self._client = client
        self._wake = wake
        self._clock = time.monotonic
        self._changed = asyncio.Event()
        self._changes = router.changes
        self._waits: dict[int, str] = {}

    # ── HTTP ──────────────────────────────────────────────────────────────────────────────────────────────

    def routes(self) -> list[Route]:
        """The contract's paths."""
        return [
            Route("/leases", self._lease, methods=["POST"]),
            Route("/leases/release", self._release, methods=["POST"]),
            Route("/leases/{lease}/renew", self._renew, methods=["POST"]),
            Route("/permits", self._permit, methods=["POST"]),
            Route("/permits/release", self._permit_release, methods=["POST"]),
            Route("/status", self._status, methods=["GET"]),
        ]

    async def _lease(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body(), type=LeaseBody)
        except msgspec.DecodeError as error:
            return _answer(422, {"reason": str(error)})
        self._take_back(body.release)
        ask = Ask(session=body.session, tokens=body.tokens, min_version=body.min_version, version=body.version)
        decision = self._router.lease(self._clock(), ask)
        if isinstance(decision, str):
            decision = await self._hold(request, ask, decision, min(body.wait_s, HOLD_S))
        return _answer(200, decision) if isinstance(decision, Grant) else _answer(503, {"reason": decision})

    async def _hold(self, request: Request, ask: Ask, reason: str, hold_s: float) -> Grant | str:
        """Ask again at every change until there is a grant, the time is up, or the client has gone."""
        decision: Grant | str = reason
        until = self._clock() + hold_s
        self._wake.set()
        try:
            while isinstance(decision, str) and (left := until - self._clock()) > 0:
                self._waits[id(request)] = decision
                if not await self._change(left) or await request.is_disconnected():
                    break
                decision = self._router.lease(self._clock(), ask)
        finally:
            self._waits.pop(id(request), None)
        return decision

    async def _change(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _release(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body(), type=ReleaseBody)
        except msgspec.DecodeError as error:
            return _answer(422, {"reason": str(error)})
        self._take_back(body.release)
        return _answer(200, {})

    async def _renew(self, request: Request) -> Response:
        if self._router.renew(self._clock(), request.path_params["lease"]):
            return _answer(200, {"ttl_s": LEASE_TTL_S})
        return _answer(404, {"reason": "no such lease"})

    async def _permit(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body(), type=PermitBody)
        except msgspec.DecodeError as error:
            return _answer(422, {"reason": str(error)})
        granted = self._router.permit(self._clock(), body.engine, body.version)
        return _answer(200, {"granted": granted, "ttl_s": PERMIT_TTL_S})

    async def _permit_release(self, request: Request) -> Response:
        try:
            body = msgspec.json.decode(await request.body(), type=PermitBody)
        except msgspec.DecodeError as error:
            return _answer(422, {"reason": str(error)})
        self._router.release_permit(self._clock(), body.engine)
        self._wake.set()
        self.announce_changes()
        return _answer(200, {})

    async def _status(self, request: Request) -> Response:
        return _answer(200, {**self._router.status(self._clock()), **self.waits()})

    def _take_back(self, releases: tuple[Release, ...]) -> None:
        now = self._clock()
        for release in releases:
            self._router.release(now, release)
            if not release.ok:
                self._wake.set()

    # ── engines ───────────────────────────────────────────────────────────────────────────────────────────

    async def poll(self, endpoints: list[Endpoint]) -> bool:
        """One look at the gate of every live engine; True when one of them has to be looked at again soon."""
        serving = {endpoint.incarnation: endpoint.url for endpoint in endpoints if endpoint.url}
        for name in self._router.engines - set(serving):
            self._router.engine_gone(name)
        answers = await asyncio.gather(*(self._look(name, url) for name, url in serving.items()))
        self._router.expire(self._clock())
        self.announce_changes()
        return not all(answers)

    async def _look(self, name: str, url: str) -> bool:
        try:
            answer = await self._client.call("GET", f"{url}/gate", deadline_s=GATE_DEADLINE_S)
            gate = msgspec.convert(answer, GateAnswer)
        except (WireError, msgspec.ValidationError):
            self._router.engine_missed(name)
            return False
        facts = Gate(state=gate.state, version=gate.version, in_flight_tokens=gate.in_flight_tokens)
        self._router.engine_seen(self._clock(), name, url, facts)
        return True

    def announce_changes(self) -> None:
        """Wake the requests on hold if one of them might be granted now."""
        if self._router.changes != self._changes:
            self._changes = self._router.changes
            self._changed.set()
            self._changed = asyncio.Event()

    @property
    def on_hold(self) -> int:
        """Lease requests that no engine can serve yet."""
        return len(self._waits)

    def waits(self) -> dict[str, Any]:
        """Lease requests on hold, and in words why."""
        return {"waiting": self.on_hold, "reason": next(iter(self._waits.values()), "")}


def _answer(status: int, content: Any) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


async def body(role: Role) -> None:
    """Serve leases until told to stop."""
    service = Service(Router(random.Random(), secrets.token_hex(4)), role.client, role.wake)
    await service.poll(role.endpoints("engine"))
    await role.serve(service.routes())
    role.announce(state="serving")
    role.hear("engine")
    with closing(_Shown(role)) as shown:
        while not role.stopping.is_set():
            again = await service.poll(role.endpoints("engine"))
            shown.show(service.waits())
            await role.nap(HURRY_POLL_S if again or service.on_hold else POLL_S)


class _Shown:
    """Keeps what `status` says of the requests on hold: their number, why, and since when."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._reason = ""
        self._wait = ExitStack()

    def show(self, waits: dict[str, Any]) -> None:
        self._role.announce(waiting_leases=waits["waiting"])
        if waits["reason"] != self._reason:
            self.close()
            self._reason = waits["reason"]
            if self._reason:
                self._wait.enter_context(self._role.waiting(self._reason))

    def close(self) -> None:
        self._reason = ""
        self._wait.close()
