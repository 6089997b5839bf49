"""The tools of one episode: what the policy is told about them, and the box they run in, opened on the first call.

A call that no tool accepts never reaches a box: it is an `error` outcome, in words for the policy. What a box
itself reports is handed on; who is to blame for it is the loop's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from prorl_cli.agent.recovery import BoxFactory, LastingBox, Result, Standing
from prorl_cli.agent.render import Call, Tool
from prorl_cli.errors import UserError, boundary
from prorl_cli.trajectory import ErrorClass

TOOLS = {
    "calculator": Tool(
        name="calculator",
        description="Evaluates an arithmetic expression.",
        parameters={
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "Such as (3 + 4) * 12."}},
            "required": ["expression"],
        },
    ),
}
"""Every tool there is; the sandbox room serves them by these names."""

_TYPES = {"string": str}
"""Python's type of each JSON schema type that a tool's parameter has."""


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
        with boundary(ErrorClass.SANDBOX, f"tool {call.tool}"):
            return await self.box.call(call.tool, call.arguments, self._timeout_s)

    async def close(self) -> None:
        """End the box, whatever it does; idempotent, and finished even if the caller is cancelled meanwhile."""
        await self.box.close()

    def _mistake(self, call: Call) -> str:
        tool = next((tool for tool in self.tools if tool.name == call.tool), None)
        if tool is None:
            names = ", ".join(tool.name for tool in self.tools) or "none"
            return f"there is no tool {call.tool!r}; tools: {names}"
        return _argument_mistake(tool, call.arguments)


def tool_named(name: str) -> Tool:
    """`UserError` for a name that no tool has."""
    if name not in TOOLS:
        raise UserError(f"agent.tools: there is no tool {name!r} in this version; there is {', '.join(TOOLS)}")
    return TOOLS[name]


def _argument_mistake(tool: Tool, arguments: dict[str, Any]) -> str:
    properties = tool.parameters["properties"]
    if missing := [name for name in tool.parameters["required"] if name not in arguments]:
        return f"{tool.name} needs {', '.join(missing)}"
    if unknown := sorted(arguments.keys() - properties.keys()):
        return f"{tool.name} takes {', '.join(properties)}, not {', '.join(map(repr, unknown))}"
    for name, value in arguments.items():
        kind = properties[name]["type"]
        if not isinstance(value, _TYPES[kind]):
            return f"{tool.name}: {name} must be of type {kind}"
    return ""
