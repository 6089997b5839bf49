"""Tools as files: `NAME.py` in a tools folder serves tool NAME through `run(arguments) -> str`, or, where it keeps
state between calls, through `open_session(setting) -> Session` (see `calls`).

`WARM`, if a file has it, are arguments with which the zygote rehearses the tool before any box is forked: what
Python fills in on first use is then inherited, not copied page by page in every box.

`run` is called in a fresh child under the box's limits. It raises `ToolError` for what the policy did wrong
(outcome `error`); it never talks to the worker itself. The zygote loads the files once; boxes inherit them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

_REHEARSALS = 32

Run = Callable[[dict[str, Any]], str]


class ToolError(Exception):
    """The policy's mistake, in words it can read."""


@contextlib.contextmanager
def refused(path: str) -> Iterator[None]:
    """What the system refuses at a path, as the policy's mistake; shortage of memory or processes stays what it is."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.EAGAIN):
            raise
        raise ToolError(f"{path}: {error.strerror}") from None


class OnDemand(dict[str, ModuleType]):
    """Tool name to its module, loaded when it is first asked for: prorl's tools named in `serve`, the worker's own
    (`../files`) by names that begin with an underscore, and every `*.py` of the folders (not `__init__`)."""

    def __init__(self, serve: Iterable[str], folders: Iterable[str]) -> None:
        own = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer to import than a box to begin
        self.paths = {name: f"{own}/{name}.py" for name in serve}
        self.paths |= {f"_{name}": path for name, path in files(f"{own}/../files").items()}
        for folder in folders:
            self.paths |= files(folder)

    def __missing__(self, name: str) -> ModuleType:
        self[name] = _load(name, self.paths[name])
        return self[name]


def load_tools(serve: Iterable[str], folders: Iterable[str]) -> OnDemand:
    """Those of the policy now; the worker's own stay on demand, for every page more makes each fork dearer."""
    tools = OnDemand(serve, folders)
    for name in tools.paths:
        if not name.startswith("_"):
            tools[name]
    return tools


def files(folder: str) -> dict[str, str]:
    """Those of a folder that are tools: name to path."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py") and not name.startswith("_"))
    return {name.removesuffix(".py"): f"{folder}/{name}" for name in names}


def rehearse(tools: dict[str, ModuleType]) -> None:
    """Run every tool that has `WARM` arguments often enough for the interpreter to specialise its code."""
    for tool in tools.values():
        warm = getattr(tool, "WARM", None)
        for _ in range(_REHEARSALS if warm else 0):
            tool.run(warm)


def _load(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"prorl_tool_{name}", path)
    assert spec and spec.loader, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
