"""What the policy is told about its tools, and which of its calls never reach a box; pure.

The sandbox room serves them by these names. Refuses arguments that a tool does not take, in words for the policy.
"""

from __future__ import annotations

from typing import Any

from prorl_cli.agent.render import Tool
from prorl_cli.errors import UserError


def _tool(name: str, description: str, required: tuple[str, ...], **properties: dict[str, Any]) -> Tool:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name=name, description=description, parameters=parameters)


def _is(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


_RESTART = _is("boolean", "Begin with a fresh one; what the old one ran is ended.")

TOOLS = {
    tool.name: tool
    for tool in (
        _tool(
            "calculator",
            "Evaluates an arithmetic expression.",
            ("expression",),
            expression=_is("string", "Such as (3 + 4) * 12."),
        ),
        _tool(
            "bash",
            "Runs a command in a bash that keeps its folder, variables and functions from call to call. Programs that "
            "read a terminal get none; a command that shall go on in the background ends with `&`.",
            (),
            command=_is("string", "One or more lines of bash."),
            restart=_RESTART,
        ),
        _tool(
            "python",
            "Runs Python code in an interpreter that keeps its names from call to call, and shows what it prints and "
            "the value of a last expression.",
            (),
            code=_is("string", "Python statements."),
            restart=_RESTART,
        ),
        _tool(
            "edit",
            "Looks at and changes text files: `view` a file (with line numbers) or a folder, `create` a file, "
            "`str_replace` a text that occurs exactly once, `insert` text after a line, `undo_edit` the last change.",
            ("command", "path"),
            command=_is("string", "What to do.", enum=["view", "create", "str_replace", "insert", "undo_edit"]),
            path=_is("string", "Of the file or folder."),
            file_text=_is("string", "For create: the whole content."),
            old_str=_is("string", "For str_replace: what is there, with enough lines around it to be unique."),
            new_str=_is("string", "For str_replace: what shall be there; nothing deletes."),
            insert_line=_is("integer", "For insert: the line after which; 0 is before the first."),
            insert_text=_is("string", "For insert: the lines."),
            view_range=_is("array", "For view: first and last line; -1 is the end.", items={"type": "integer"}),
        ),
    )
}
"""Every tool there is."""

_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list}
"""Python's type of each JSON schema type that a tool's parameter has."""


def tool_named(name: str) -> Tool:
    """`UserError` for a name that no tool has."""
    if name not in TOOLS:
        raise UserError(f"agent.tools: there is no tool {name!r} in this version; there is {', '.join(TOOLS)}")
    return TOOLS[name]


def argument_mistake(tool: Tool, arguments: dict[str, Any]) -> str:
    """What is wrong with them, empty where nothing is."""
    properties = tool.parameters["properties"]
    if missing := [name for name in tool.parameters["required"] if name not in arguments]:
        return f"{tool.name} needs {', '.join(missing)}"
    if unknown := sorted(arguments.keys() - properties.keys()):
        return f"{tool.name} takes {', '.join(properties)}, not {', '.join(map(repr, unknown))}"
    return next(filter(None, (_value_mistake(tool, name, value) for name, value in arguments.items())), "")


def _is_a(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))


def _value_mistake(tool: Tool, name: str, value: Any) -> str:
    wanted: dict[str, Any] = tool.parameters["properties"][name]
    if not _is_a(wanted["type"], value):
        return f"{tool.name}: {name} must be of type {wanted['type']}"
    if isinstance(value, list) and not all(_is_a(wanted["items"]["type"], item) for item in value):
        return f"{tool.name}: {name} must hold values of type {wanted['items']['type']}"
    if "enum" in wanted and value not in wanted["enum"]:
        return f"{tool.name}: {name} must be one of {', '.join(wanted['enum'])}"
    return ""
