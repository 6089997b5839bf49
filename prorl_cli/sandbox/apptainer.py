"""The `apptainer` runtime: a box is one long-lived `exec` of an image, a SIF file or an unpacked folder.

Builds the command line; starts nothing. prorl's code and its own interpreter are mounted read-only below `/.prorl`,
so that an image needs neither Python nor anything else of ours. Refuses an image that is not there, and a machine
without Apptainer or Singularity. Called by `factory`.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import root

PROGRAMS = ("apptainer", "singularity")

_WALLS = [
    *("--userns", "--containall", "--cleanenv", "--no-home", "--no-init", "--no-eval", "--writable-tmpfs"),
    *("--net", "--network", "none", "--no-mount", "home,cwd,tmp,sys,bind-paths,hostfs", "--pwd", "/"),
]
# --no-init: the box's first process is prorl's, out of reach of `kill -9 -1`; the runtime's own would show its
# configuration in /proc/1/environ. --net as well as --network: older ones do nothing without it.

_TAIL_S = 110.0
"""A box asked for while 64 others are: those before it take 0.1–0.3 s of processor each."""


class Apptainer:
    """Boxes from `image`, which records name."""

    name = "apptainer"
    remedy = "`apptainer exec IMAGE true` must work on every rollout node; or say sandbox.runtime: bwrap"
    ready_s = 10.0 + _TAIL_S
    writes = True

    def __init__(self, tools: root.Tools, sandbox: Sandbox) -> None:
        self.image = str(Path(sandbox.image).absolute())
        self._tools = tools
        self._limits = root.limits_of(sandbox)

    def command(self, control: int, own: Path | None) -> list[str]:
        return root.plain_command(control)

    def facts(self) -> dict[str, Any]:
        program = find_program()
        if not Path(self.image).exists():
            raise UserError(f"sandbox.image: there is no {self.image}")
        python = root.find_python(root.interpreter())
        mounts = [word for bind in root.prorl_binds(python, self._tools) for word in ("--mount", _mount(*bind))]
        return {
            "tools": self._tools.names,
            "launch": [program, "--quiet", "exec", *_WALLS, *mounts, self.image, *self._serve(python)],
            "environment": _environment(program),
        }

    def _serve(self, python: root.Python) -> list[str]:
        tools = {"serve": self._tools.serve, "tools": self._tools.inside}
        config = {"limits": self._limits, "own": root.HOME, "hidden": python.hidden, **tools}
        return python.command("-c", root.FURNISH, f"{root.HOME}/prorl_cli", json.dumps(config))


def find_program() -> str:
    """Apptainer, or Singularity where there is none. Raises `UserError`."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if not found:
        raise UserError("neither apptainer nor singularity is installed (or in PATH: is a module to be loaded?)")
    return found


def _environment(program: str) -> dict[str, str]:
    """The launcher's whole environment: no proxy, no bus (#3607), nothing that it would take as an option of ours.

    What it keeps and unpacks goes to the zygote's folder, not to a home that every node shares.
    """
    path = f"{Path(program).parent}:{root.CLEAN['PATH']}"
    own = {
        f"{prefix}_{name}": "{FOLDER}" for prefix in ("APPTAINER", "SINGULARITY") for name in ("CONFIGDIR", "TMPDIR")
    }
    kept = own if Path(program).name == "apptainer" else {k: v for k, v in own.items() if k.startswith("SING")}
    return {"PATH": path, "LANG": root.CLEAN["LANG"], "HOME": "{FOLDER}", **kept}


def _mount(source: str, inside: str) -> str:
    """Quoted, for a path may hold commas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(["type=bind", f"source={source}", f"destination={inside}", "ro"])
    return text.getvalue()
