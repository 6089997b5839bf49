"""One episode's box, as the worker sees it: calls by id over its socket, and how it ended.

Refuses tools that are not served. A call has exactly one answer: the tool's result, `dead` where the policy's own
action ended the box, or `InfraError` where anything else did. Made by `factory`, used by the agent loop.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Mapping
from typing import Any

from prorl_cli.errors import InfraError, UserError
from prorl_cli.sandbox import transfer
from prorl_cli.sandbox.boxed.frames import FrameTooLong, pack
from prorl_cli.sandbox.link import Link
from prorl_cli.sandbox.parent import LEAVE_S, Parent
from prorl_cli.sandbox.results import Death, Ended, Reply, ToolResult, judge
from prorl_cli.trajectory import ErrorClass

GRACE_S = 5.0
"""How much later than its own clock a box may report a timeout before it counts as stuck."""

GET_BYTES = 64 * 2**20
"""Of what is read from a box at once, unless more is asked for."""


class Box:
    """Build with `Box.start`. One call at a time; a cancelled call ends the box, for its tool may still run."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._number = 0
        self._calls = 0
        ours, self._theirs = socket.socketpair()
        self._link = Link(ours)
        self._ended: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        self._closed = False

    @classmethod
    async def start(cls, parent: Parent, like: Box | None = None) -> Box:
        """A box that is ready for its first call. Raises `InfraError` (sandbox)."""
        box = cls(parent)
        try:
            await box._begin(like)
        except BaseException:
            box.kill()
            raise
        return box

    async def _begin(self, like: Box | None) -> None:
        if like and like._parent is not self._parent:
            raise InfraError(ErrorClass.SANDBOX, "the box that it is to be like has ended")
        with self._theirs:
            self._number = await self._parent.begin(self._theirs, self._end, like._number if like else 0)
        ready = await self._reply(0, self._parent.ready_s)
        if ready is None or ready.outcome != "ready":
            why = ready.output if ready else self._ended.result().how
            raise InfraError(ErrorClass.SANDBOX, f"a box could not be set up: {why}")

    def _end(self, notice: Ended) -> None:
        self._link.close()
        self._ended.set_result(judge(notice))

    @property
    def death(self) -> Death | None:
        """How the box ended; None while it lives."""
        return self._ended.result() if self._ended.done() else None

    async def call(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> ToolResult:
        """Run a tool in the box for at most `timeout_s` seconds.

        Raises `UserError` for a tool that is not served, `InfraError` (sandbox) for a box that something
        other than the policy ended.
        """
        if tool not in self._parent.tools:
            available = ", ".join(sorted(name for name in self._parent.tools if not name.startswith("_")))
            raise UserError(f"no tool {tool!r} in this sandbox; available: {available}")
        began = time.monotonic()
        try:
            reply = await self._ask(tool, arguments, timeout_s)
        except BaseException:
            self.kill()
            raise
        seconds = time.monotonic() - began
        return ToolResult(output=reply.output, outcome=reply.outcome, seconds=seconds, facts=reply.facts)

    async def put_all(self, folder: str, files: Mapping[str, bytes], mode: int = 0o644) -> None:
        """Write files below a folder, which is below the box's home if it is relative. Raises `FileRefused`."""
        await transfer.put(self.call, {f"{folder}/{name}": data for name, data in files.items()}, mode)

    async def get(self, path: str, limit: int = GET_BYTES) -> bytes:
        """Read a file of at most `limit` bytes. Raises `FileRefused`."""
        return await transfer.get(self.call, path, limit)

    async def _ask(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Reply:
        self._calls += 1
        message = {"id": self._calls, "tool": tool, "arguments": arguments, "timeout_s": timeout_s}
        try:
            frame = pack(message)
        except FrameTooLong as error:
            return Reply(self._calls, "error", f"error: the arguments are too long: {error}")
        self._link.send(frame)
        reply = await self._reply(self._calls, timeout_s + GRACE_S)
        if reply is None:
            return self._dead()
        if reply.outcome == "killed":
            raise InfraError(ErrorClass.SANDBOX, reply.output)
        return reply

    async def _reply(self, number: int, within_s: float) -> Reply | None:
        """The frame with this id; None where the box ended first."""
        answer = self._link.expect(number)
        either: set[asyncio.Future[Any]] = {answer, self._ended}
        await asyncio.wait(either, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        self._link.forget(number)
        if answer.done():
            return answer.result()
        if not self._ended.done():
            raise InfraError(ErrorClass.SANDBOX, f"a box did not answer within {within_s:g} s")
        return None

    def _dead(self) -> Reply:
        death = self._ended.result()
        if self._closed or not death.by_policy:
            how = "is closed" if self._closed else "sent what is no frame" if self._link.nonsense else death.how
            raise InfraError(ErrorClass.SANDBOX, f"the box {how}")
        return Reply(self._calls, "dead", f"error: the box {death.how}")

    def kill(self) -> None:
        """End the box and all in it, without waiting; twice is fine."""
        self._closed = True
        self._link.close()
        self._parent.end(self._number)

    async def close(self) -> None:
        """`kill`, and wait until nothing of the box runs; its folder is removed behind it. Twice is fine."""
        self.kill()
        await asyncio.wait({self._ended}, timeout=LEAVE_S)
        if not self._ended.done():  # a zygote that cannot even kill has to go, with all it holds
            await self._parent.close()
