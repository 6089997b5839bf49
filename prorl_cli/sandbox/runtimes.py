"""What the boxes of a worker run in: `bwrap` and `process` here, `apptainer` in its own module.

A runtime says how its zygote is started and what that must know; it starts nothing itself. Refuses what this machine
lacks, in words. Called by `factory` and `parent`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import root


class Runtime(Protocol):
    """`image` is what a record says its calls ran in; a box is ready within `ready_s` of being asked for. Its zygote
    gets a folder on the node's disk if the boxes have `writes` to keep there."""

    name: str
    image: str
    remedy: str
    ready_s: float
    writes: bool

    def command(self, control: int, tools: Sequence[Path]) -> list[str]:
        """The zygote's command line; it inherits descriptor `control`. Raises `UserError`."""

    def facts(self, sandbox: Sandbox, tools: Sequence[Path]) -> dict[str, Any]:
        """What the zygote's kind of boxes must know besides the limits. Raises `UserError`."""


class Process:
    """Plain processes: a session and a folder of their own, limits, and no walls."""

    name = image = "process"
    remedy = ""
    ready_s = 10.0
    writes = True

    def command(self, control: int, tools: Sequence[Path]) -> list[str]:
        return root.plain_command(control)

    def facts(self, sandbox: Sandbox, tools: Sequence[Path]) -> dict[str, Any]:
        return {"tools": [str(folder) for folder in tools]}


class Bwrap:
    """Namespaces of their own below a root that holds Python and nothing else."""

    name = image = "bwrap"
    remedy = "install package bubblewrap, or say sandbox.runtime: process, which promises no isolation"
    ready_s = 10.0
    writes = False

    def command(self, control: int, tools: Sequence[Path]) -> list[str]:
        bwrap = shutil.which("bwrap")
        if not bwrap:
            raise UserError("bwrap is not installed")
        return root.bwrap_command(bwrap, root.find_python(root.interpreter()), control, tools, root.is_root())

    def facts(self, sandbox: Sandbox, tools: Sequence[Path]) -> dict[str, Any]:
        return {"tools": root.boxed_tools(tools), "drop_root": root.is_root()}
