"""The tools of one episode, and the box they run in, opened on the first call.

A call that no tool accepts never reaches a box: it is an `error` outcome, in words for the policy. What a box
itself reports is handed on; who is to blame for it is the loop's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from prorl_cli.agent.recovery import BoxFactory, LastingBox, Result, Standing
from prorl_cli.agent.render import Call
from prorl_cli.agent.tools import argument_mistake, tool_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call answered without a box."""

    output: str
    outcome: str = "error"


class ToolBox:
    """`tools` by name, run in a box from `factory`; each call has `timeout_s` seconds.

    `box` is that box: what the tools need is put there before the first call, what they made is read there."""

    def __init__(
        self,
        factory: BoxFactory,
        tools: Iterable[str],
        timeout_s: float,
        standing: Standing = lambda _: nullcontext(),
    ) -> None:
        self.tools = tuple(tool_named(name) for name in tools)
        self.box = LastingBox(factory, standing)
        self._timeout_s = timeout_s

    async def call(self, call: Call) -> Result:
        """Run one call; `InfraError(sandbox)` when no box can be had."""
        if wrong := self._mistake(call):
            return Refusal(output=f"error: {wrong}")
        return await self.box.call(call.tool, call.arguments, self._timeout_s)

    async def close(self) -> None:
        """End the box, whatever it does; idempotent, and finished even if the caller is cancelled meanwhile."""
        await self.box.close()

    def _mistake(self, call: Call) -> str:
        tool = next((tool for tool in self.tools if tool.name == call.tool), None)
        if tool is None:
            names = ", ".join(tool.name for tool in self.tools) or "none"
            return f"there is no tool {call.tool!r}; tools: {names}"
        return argument_mistake(tool, call.arguments)
