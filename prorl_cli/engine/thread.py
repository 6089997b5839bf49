"""The decoder in a thread of its own, and its asyncio face: `generate`, `reload`, `stop`.

Commands enter between two steps. torch releases the GIL while it computes, so the HTTP loop answers meanwhile.
Whatever the decoder raises ends `run` with it and fails every open call: nothing is served after that.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from prorl_cli.engine.decoder import Completion, Decoder, DecodeRequest
from prorl_cli.errors import ProrlError

SPEED_WINDOW_S = 10.0
"""Busy seconds over which the reported speed forgets two thirds of its past."""


class EngineDown(ProrlError):
    """The decoder has ended; the request cannot be served here."""


@dataclass(slots=True)
class Meter:
    """Tokens generated, seconds spent at it, and the recent speed in tokens per busy second."""

    tokens_total: int = 0
    busy_s: float = 0.0
    _recent_tokens: float = 0.0
    _recent_s: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Account one step."""
        self.tokens_total += tokens
        self.busy_s += seconds
        kept = math.exp(-seconds / SPEED_WINDOW_S)
        self._recent_tokens = kept * self._recent_tokens + tokens
        self._recent_s = kept * self._recent_s + seconds

    @property
    def tokens_per_s(self) -> float:
        return self._recent_tokens / self._recent_s if self._recent_s else 0.0

    def facts(self) -> dict[str, float]:
        """What `GET /gate` tells of it."""
        return {"tokens_total": self.tokens_total, "busy_s": self.busy_s, "tokens_per_s": self.tokens_per_s}


class DecodeThread:
    """`run` for as long as the engine serves; the other calls from the same event loop."""

    def __init__(self, decoder: Decoder, *, threads: int) -> None:
        self.meter = Meter()
        self.busy, self.idle = asyncio.Event(), asyncio.Event()
        self._decoder = decoder
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._tickets = itertools.count()
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._news = threading.Condition()
        self._ended = False

    async def run(self) -> None:
        """Decode until `stop`; raises what the decoder raised."""
        try:
            await asyncio.to_thread(self._decode)
        finally:
            self._end()
            for future in self._open.values():
                if not future.done():
                    future.set_exception(EngineDown("the engine's decoder has ended"))

    async def generate(self, request: DecodeRequest) -> Completion:
        """Decode one request; cancelling this aborts it before the next step. `EngineDown` when it cannot be served."""
        ticket = next(self._tickets)
        completion: Completion
        try:
            completion = await self._call(ticket, lambda: self._decoder.add(ticket, request))
        except asyncio.CancelledError:
            self._post(lambda: self._abort(ticket))
            raise
        return completion

    async def reload(self, version: int, load: Callable[[], None]) -> None:
        """`Decoder.reload` between two steps; when it raises, the engine is down and so does `run`."""
        ticket = next(self._tickets)

        def command() -> None:
            try:
                self._decoder.reload(version, load)
            except BaseException as error:
                self._tell(functools.partial(self._refuse, ticket, error))
                raise
            self._tell(lambda: self._resolve([(ticket, None)]))

        await self._call(ticket, command)

    def stop(self) -> None:
        """Answer everything in flight with what it has so far (`abort`) and end `run`."""
        for ticket in list(self._open):
            self._post(functools.partial(self._abort, ticket))
        self._post(self._end)

    # ── event loop side ───────────────────────────────────────────────────────────────────────────────────

    async def _call(self, ticket: int, command: Callable[[], None]) -> Any:
        if self._ended:
            raise EngineDown("the engine's decoder has ended")
        self._open[ticket] = self._loop.create_future()
        self._post(command)
        try:
            return await self._open[ticket]
        finally:
            del self._open[ticket]

    def _post(self, command: Callable[[], None]) -> None:
        with self._news:
            self._commands.append(command)
            self._news.notify()

    def _resolve(self, results: list[tuple[int, Any]]) -> None:
        for ticket, result in results:
            future = self._open.get(ticket)
            if future is not None and not future.done():
                future.set_result(result)

    def _refuse(self, ticket: int, error: BaseException) -> None:
        future = self._open.get(ticket)
        if future is not None and not future.done():
            future.set_exception(error)

    def _turn(self, busy: bool) -> None:
        begun, over = (self.busy, self.idle) if busy else (self.idle, self.busy)
        begun.set()
        over.clear()

    # ── decoder side ──────────────────────────────────────────────────────────────────────────────────────

    def _decode(self) -> None:
        # OpenMP's number of threads belongs to the thread that computes.
        torch.set_num_threads(self._threads)
        while not self._ended:
            self._obey()
            if not self._decoder.idle:
                self._step()

    def _obey(self) -> None:
        with self._news:
            if self._decoder.idle and not self._commands:
                self._tell(functools.partial(self._turn, False))
                self._news.wait_for(lambda: self._commands or self._ended)
                self._tell(functools.partial(self._turn, True))
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()

    def _step(self) -> None:
        start = time.perf_counter()
        before = self._decoder.generated
        ended = self._decoder.step()
        self.meter.add(self._decoder.generated - before, time.perf_counter() - start)
        if ended:
            self._tell(lambda: self._resolve(ended))

    def _abort(self, ticket: int) -> None:
        if completion := self._decoder.abort(ticket):
            self._tell(lambda: self._resolve([(ticket, completion)]))

    def _end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify()

    def _tell(self, news: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(news)
