"""`LastingBox`: an episode's box that outlives the death of the box it runs in, for as long as that is nobody's doing.

Everything done to the box is kept. Where it dies through no action of the policy (`InfraError` of the sandbox), a
fresh one is opened, the same is done to it, without the policy, and the episode goes on; an output that then differs
from what the policy was told makes it `diverged`. Refuses to go on once its budget of replays is spent: the error
stands. What the policy did to its box is a result like any other and is done again like any other. Made by `toolbox`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from prorl_cli.errors import InfraError, ProrlError, boundary
from prorl_cli.trajectory import ErrorClass

REPLAYS = 3
"""Of one episode: a node that takes more boxes than that is better left to the member's next try."""

T = TypeVar("T")


class Result(Protocol):
    """What a box answers (`sandbox.ToolResult`)."""

    @property
    def output(self) -> str: ...
    @property
    def outcome(self) -> str: ...


class Box(Protocol):
    """One episode's box (`sandbox.Box`)."""

    async def call(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Result: ...
    async def put_all(self, folder: str, files: Mapping[str, bytes], mode: int) -> None: ...
    async def get(self, path: str, limit: int) -> bytes: ...
    async def close(self) -> None: ...


class BoxFactory(Protocol):
    """Where boxes come from (`sandbox.BoxFactory`)."""

    async def start(self) -> Box: ...


Standing = Callable[[float], AbstractContextManager[None]]
"""Entered with the seconds that were lost with a box; until it is left, nobody's clock runs."""


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    """Something done to the box, and what came of it."""

    act: Callable[[Box], Awaitable[T]]
    came: T


class LastingBox:
    """Opened on first use. `replays` counts fresh boxes, `lost_s` what they and the dead ones cost."""

    def __init__(self, factory: BoxFactory, standing: Standing = lambda _: nullcontext()) -> None:
        self._factory, self._standing = factory, standing
        self._box: Box | None = None
        self._done: list[_Done[Any]] = []
        self.replays = 0
        self.lost_s = 0.0
        self.diverged = False

    def another(self) -> LastingBox:
        """A box of its own beside this one, from the same factory and on the same clocks."""
        return LastingBox(self._factory, self._standing)

    async def open(self) -> None:
        """Have it up before it is needed; `InfraError` (sandbox) when no box can be had."""
        if self._box is None and self._done:
            raise InfraError(ErrorClass.SANDBOX, "the episode's box is gone")
        if self._box is None:
            self._box = await self._factory.start()

    async def call(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Result:
        """Run a tool; `InfraError` (sandbox) when no box can be had."""
        return await self._do(lambda box: box.call(tool, arguments, timeout_s), f"tool {tool}")

    async def put_all(self, folder: str, files: Mapping[str, bytes], mode: int = 0o644) -> None:
        """Write files below a folder of the box."""
        await self._do(lambda box: box.put_all(folder, files, mode))

    async def get(self, path: str, limit: int) -> bytes:
        """Read a file of the box."""
        return await self._do(lambda box: box.get(path, limit))

    async def close(self) -> None:
        """End the box, whatever it does; idempotent, and finished even if the caller is cancelled meanwhile."""
        box, self._box = self._box, None
        if box is not None:
            await asyncio.shield(asyncio.ensure_future(box.close()))

    async def _do(self, act: Callable[[Box], Awaitable[T]], what: str = "a box") -> T:
        with boundary(ErrorClass.SANDBOX, what):
            await self.open()
            came = await self._outlasting(act)
        self._done.append(_Done(act, came))
        return came

    async def _outlasting(self, act: Callable[[Box], Awaitable[T]]) -> T:
        while True:
            began = time.monotonic()
            assert self._box is not None
            try:
                return await act(self._box)
            except InfraError as death:
                await self._recover(death, time.monotonic() - began)

    async def _recover(self, death: InfraError, lost_s: float) -> None:
        """Have a box again in which everything has been done, or raise what the last one died of."""
        began = time.monotonic()
        try:
            with self._standing(lost_s):
                while not await self._replayed(death):
                    pass
        finally:
            self.lost_s += lost_s + time.monotonic() - began

    async def _replayed(self, death: InfraError) -> bool:
        """Whether a fresh box came through; raises `death` where there is none to be had any more."""
        await self.close()
        if death.error_class != ErrorClass.SANDBOX or self.replays >= REPLAYS:
            raise death
        self.replays += 1
        try:
            self._box = await self._factory.start()
            for done in self._done:
                self.diverged |= differs(done.came, await done.act(self._box))
        except ProrlError:  # a file refused, too: it was not, before
            return False
        return True


def differs(told: Any, now: Any) -> bool:
    """Whether a result, or the content of a file, is another than it was; times do not count. `InfraError` where the
    box has died of what it lived through before."""
    if told is None or isinstance(told, bytes):
        return bool(told != now)
    if now.outcome == "dead" != told.outcome:
        raise InfraError(ErrorClass.SANDBOX, f"a box died while its past was repeated: {now.output}")
    return (told.outcome, told.output) != (now.outcome, now.output)
