"""The gate: one pure ASGI middleware in front of a policy server, embedded or vLLM (`--middleware`).

It asks for a token on every path (vLLM's own key leaves the development endpoints open): the data token for
generation and for GET, the admin token for everything else. It refuses ids outside the vocabulary before the
engine sees them (one such id kills a vLLM without tokenizer), counts what is in flight, stamps the weight version
on answers, drains, and tells its state at `GET /gate`. It never changes a body: what it read it replays.

In another process than its engine's supervisor (vLLM) that one moves it: `POST /gate/state {state, version}`. It then
has a doorbell, and holds answers back while paused: they may come from weights that are not proved yet.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from prorl_cli.engine.protocol import GENERATE_PATH
from prorl_cli.wire.doorbell import Doorbell
from prorl_cli.wire.server import App, Message, Receive, Scope, Send, answer, bearer, same_token, unauthorized

MODEL_NAME = "policy"
"""What a vLLM server calls its model, whatever folder it came from."""

SETTINGS = "PRORL_GATE"
"""Environment variable that names the settings file (0600) where the gate is loaded by import path alone."""


class GateState(StrEnum):
    """What the engine behind the gate is doing."""

    LOADING = "loading"
    """No proved weights yet."""
    READY = "ready"
    """Serving."""
    PAUSED = "paused"
    """Swapping weights: requests wait inside."""
    DRAINING = "draining"
    """Finishing what is in flight, taking nothing new."""
    FAILED = "failed"
    """Out for good: its weights could not be proved, or its decoder died."""


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and limits; `vocab_size` 0 = not known yet, and then nothing is let through."""

    data_token: str
    admin_token: str
    vocab_size: int = 0
    max_model_len: int = 0

    def __post_init__(self) -> None:
        if not (self.data_token and self.admin_token):
            raise ValueError("the gate needs both tokens: an empty one would let everybody in")


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /gate/state`."""

    state: GateState
    version: int


def _no_facts() -> dict[str, float]:
    return {}


def _cache_facts() -> dict[str, float]:
    """Share of vLLM's cache in use, from the metrics of the process that this gate is loaded into."""
    metrics = sys.modules.get("prometheus_client")
    labels = {"model_name": MODEL_NAME, "engine": "0"}
    used = metrics.REGISTRY.get_sample_value("vllm:kv_cache_usage_perc", labels) if metrics else None
    return {} if used is None else {"cache_used": used}


@dataclass(slots=True, kw_only=True)
class Door:
    """The gate's changing part, shared with the process that supervises the engine."""

    settings: GateSettings
    state: GateState = GateState.LOADING
    version: int = -1
    in_flight_requests: int = 0
    in_flight_tokens: int = 0
    tokens_total: int = 0
    """Generated in answers that are complete."""
    facts: Callable[[], dict[str, float]] = _no_facts
    """The engine's own, where it has any."""
    doorbell: Doorbell | None = None
    """Where the gate is moved from outside: it rings at every move."""
    proved: asyncio.Event | None = None
    """With a doorbell: unset while answers are held back."""
    _busy_s: float = 0.0
    _busy_since: float = field(default_factory=time.monotonic)

    @classmethod
    def from_environment(cls) -> Door:
        """For a server in a process of its own."""
        raw = Path(os.environ[SETTINGS]).read_bytes()
        settings = msgspec.json.decode(raw, type=GateSettings)
        return cls(settings=settings, doorbell=Doorbell(), proved=asyncio.Event(), facts=_cache_facts)

    def move(self, to: Move) -> None:
        """What the supervisor says is so; a door that drains goes on letting out what it let out before."""
        self.state, self.version = to.state, to.version
        if self.proved is not None and to.state is GateState.READY:
            self.proved.set()
        elif self.proved is not None and to.state is not GateState.DRAINING:
            self.proved.clear()
        if self.doorbell is not None:
            self.doorbell.ring()

    @property
    def open(self) -> bool:
        """May a new generation enter?"""
        return self.state in (GateState.READY, GateState.PAUSED) and self.settings.vocab_size > 0

    def enter(self, tokens: int) -> None:
        """A request that may hold so many tokens goes in."""
        if not self.in_flight_requests:
            self._busy_since = time.monotonic()
        self.in_flight_requests += 1
        self.in_flight_tokens += tokens

    def leave(self, tokens: int) -> None:
        """Once for every `enter`, however it ended."""
        self.in_flight_requests -= 1
        self.in_flight_tokens -= tokens
        if not self.in_flight_requests:
            self._busy_s += time.monotonic() - self._busy_since

    @property
    def busy_s(self) -> float:
        """Seconds in which anything was in flight."""
        return self._busy_s + (time.monotonic() - self._busy_since if self.in_flight_requests else 0.0)

    def drain(self) -> None:
        """Take nothing new from now on; a failed engine stays failed."""
        if self.state is not GateState.FAILED:
            self.state = GateState.DRAINING

    def report(self) -> dict[str, Any]:
        """The body of `GET /gate`. In-flight tokens count each request's prompt and all it may still generate."""
        return {
            "state": self.state,
            "version": self.version,
            "in_flight_requests": self.in_flight_requests,
            "in_flight_tokens": self.in_flight_tokens,
            "tokens_total": self.tokens_total,
            "busy_s": self.busy_s,
            "tokens_per_s": 0.0,
            "vocab_size": self.settings.vocab_size,
            "max_model_len": self.settings.max_model_len,
            **self.facts(),
        }


class Gate:
    """`Gate(app, door)`; `Gate(app)` reads its settings from the file named by `$PRORL_GATE`."""

    def __init__(self, app: App, door: Door | None = None) -> None:
        self._app = app
        self.door = door or Door.from_environment()
        self._doorbell: App | None = self.door.doorbell.route().app if self.door.doorbell else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, answer itself, or hand on. A WebSocket gets no further: nothing here speaks it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif not same_token(bearer(scope), self._token_for(scope)):
            await unauthorized(send)
        elif f"{scope['path']}/".startswith("/gate/"):
            await self._own(scope, receive, send)
        elif self._doorbell is not None and scope["path"] == "/doorbell":
            await self._doorbell(scope, receive, send)
        elif scope["method"] == "POST" and scope["path"] == GENERATE_PATH:
            await self._generate(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _token_for(self, scope: Scope) -> str:
        reading = scope["method"] in ("GET", "HEAD")
        generating = scope["method"] == "POST" and scope["path"] == GENERATE_PATH
        settings = self.door.settings
        return settings.data_token if reading or generating else settings.admin_token

    async def _own(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = (scope["method"], scope["path"])
        if request == ("POST", "/gate/drain"):
            self.door.drain()
        elif request == ("POST", "/gate/state") and self.door.doorbell is not None:
            try:
                self.door.move(msgspec.json.decode(await _read(receive) or b"", type=Move))
            except msgspec.DecodeError:
                await answer(send, 400, "the body must be JSON with state and version")
                return
        elif request != ("GET", "/gate"):
            await answer(send, 404, "no such gate path")
            return
        await _json(send, self.door.report())

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.door.open:
            await answer(send, 503, f"this engine is {self.door.state} and takes no request")
            return
        body = await _read(receive)
        if body is None:
            return
        tokens, refusal = weigh(body, self.door.settings)
        if refusal:
            await answer(send, *refusal)
            return
        self.door.enter(tokens)
        try:
            await self._app(scope, _replay(body, receive), self._stamped(send))
        finally:
            self.door.leave(tokens)

    def _stamped(self, send: Send) -> Send:
        async def stamp(message: Message) -> None:
            if message["type"] == "http.response.start":
                if self.door.proved is not None:
                    await self.door.proved.wait()
                version = (b"x-weight-version", str(self.door.version).encode())
                message = {**message, "headers": [*message.get("headers", ()), version]}
            elif said := _COMPLETION_TOKENS.search(message.get("body", b"")):
                self.door.tokens_total += int(said[1])
            await send(message)

        return stamp


_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
"""In the usage of an answer, which comes in one piece."""


class _Budget(msgspec.Struct, frozen=True):
    max_tokens: int | None = None


class _Weighed(msgspec.Struct, frozen=True):
    token_ids: list[int]
    sampling_params: _Budget = _Budget()


def weigh(body: bytes, settings: GateSettings) -> tuple[int, tuple[int, str] | None]:
    """Tokens that a generate request may hold in the engine, and the refusal (status, text) it earns or None."""
    try:
        request = msgspec.json.decode(body, type=_Weighed)
    except msgspec.DecodeError:
        return 0, (400, "the body must be JSON with token_ids, a list of integers")
    ids = request.token_ids
    # min and max run in C: this is on the path of every request.
    if ids and not (min(ids) >= 0 and max(ids) < settings.vocab_size):
        return 0, (422, f"a token id is outside the vocabulary of {settings.vocab_size}")
    room = max(0, settings.max_model_len - len(ids))
    wanted = request.sampling_params.max_tokens
    return len(ids) + (room if wanted is None else min(room, max(0, wanted))), None


async def _read(receive: Receive) -> bytes | None:
    """The whole request body; None when the client left before it was complete."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then whatever comes, so that a disconnect still reaches the app."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


async def _json(send: Send, content: dict[str, Any]) -> None:
    body = msgspec.json.encode(content)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
