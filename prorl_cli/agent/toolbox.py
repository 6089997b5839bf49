"""The tools of one episode: what the policy is told about them, and the box they run in, opened on the first call.

A call that no tool accepts never reaches a box: it is an `error` outcome, in words for the policy. What a box
itself reports is handed on; who is to blame for it is the loop's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

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


class Result(Protocol):
    """What a box answers (`sandbox.ToolResult`)."""

    @property
    def output(self) -> str: ...
    @property
    def outcome(self) -> str: ...


class Box(Protocol):
    """One episode's box (`sandbox.Box`)."""

    async def call(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Result: ...
    async def close(self) -> None: ...


class BoxFactory(Protocol):
    """Where boxes come from (`sandbox.BoxFactory`)."""

    async def start(self) -> Box: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call answered without a box."""

    output: str
    outcome: str = "error"


class ToolBox:
    """`tools` by name, run in a box from `factory`; each call has `timeout_s` seconds."""

    def __init__(self, factory: BoxFactory, tools: Iterable[str], timeout_s: float) -> None:
        self.tools = tuple(tool_named(name) for name in tools)
        self._factory, self._timeout_s = factory, timeout_s
        self._box: Box | None = None

    async def call(self, call: Call) -> Result:
        """Run one call; `InfraError(sandbox)` when no box can be had."""
        if wrong := self._mistake(call):
            return Refusal(output=f"error: {wrong}")
        with boundary(ErrorClass.SANDBOX, f"tool {call.tool}"):
            return await (await self._open()).call(call.tool, call.arguments, self._timeout_s)

    async def close(self) -> None:
        """End the box, whatever it does; idempotent, and finished even if the caller is cancelled meanwhile."""
        box, self._box = self._box, None
        if box is not None:
            await asyncio.shield(asyncio.ensure_future(box.close()))

    async def _open(self) -> Box:
        if self._box is None:
            self._box = await self._factory.start()
        return self._box

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
