"""The `apptainer` runtime: a box is one long-lived `exec` of an image, a SIF file or an unpacked folder.

Builds the command line, once it has tried how writes are best kept. prorl's code and its own interpreter are mounted
read-only below `/.prorl`, so that an image needs neither Python nor anything else of ours. Refuses an image that is not
there, and a machine without Apptainer or Singularity. Called by `factory`.
"""

from __future__ import annotations

import compileall
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import nodelocal
from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import flavour, root
from prorl_cli.sandbox.boxed.launched import BOX, LAYER, START_S, complaint
from prorl_cli.sandbox.parent import GATES
from prorl_cli.sandbox.runtimes import Zygote

PROGRAMS = ("apptainer", "singularity")

_WALLS = [
    *("--userns", "--containall", "--cleanenv", "--no-home", "--no-init", "--no-eval"),
    *("--net", "--network", "none", "--no-mount", "home,cwd,tmp,sys,bind-paths,hostfs", "--pwd", "/"),
]
# --no-init: the box's first process is prorl's, out of reach of `kill -9 -1`; the runtime's own would show its
# configuration in /proc/1/environ. --net as well as --network: older ones do nothing without it.

_IN_MEMORY = ["--writable-tmpfs"]

_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
"""`--overlay` takes colons and commas for its own."""

_SEEN_LAYER = f"{root.HOME}/layer"
"""Where a box finds its own folder for a moment, to count what it writes."""

_TAIL_S = 110.0
"""A box asked for while 64 others are: those before it take 0.1–0.3 s of processor each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What was found here, once a worker: the `prefix` of the program's environment, whether boxes can keep a `layer`
    on disk, and what they do without."""

    prefix: str
    layer: bool
    note: str


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
        self._node: _Node | None = None

    def zygote(self, control: int, own: Path | None) -> Zygote:
        assert own, "its zygote has a folder"
        program, python = find_program(), root.find_python(root.interpreter())
        if not Path(self.image).exists():
            raise UserError(f"sandbox.image: there is no {self.image}")
        mounts = [word for bind in root.prorl_binds(python, self._tools) for word in ("--mount", _mount(*bind))]
        start = [program, "exec", *_WALLS, *mounts]
        node = self._node or self._try(start, python, own)
        self._node = node if node.layer else None  # what failed may have been a busy node
        kept = _layer_words(own, BOX) if node.layer else _IN_MEMORY
        facts = {
            "tools": self._tools.names,
            "launch": [*start, *kept, self.image, *self._serve(python, node.layer)],
            "environment": _environment(program, node.prefix, own),
            "layer": node.layer,
            "note": node.note,
            "gate": str(own.parent / GATES),
            "widths": gate_widths(self.image, os.cpu_count() or 1),
        }
        return Zygote(command=root.plain_command(control, own), facts=facts)

    def _serve(self, python: root.Python, layer: bool) -> list[str]:
        tools = {"serve": self._tools.serve, "tools": self._tools.inside}
        seen = {"layer": _SEEN_LAYER if layer else "", "hidden": [*python.hidden, *([_SEEN_LAYER] if layer else [])]}
        config = {"limits": self._limits, "own": root.HOME, **seen, **tools}
        return python.command("-c", root.FURNISH, f"{root.HOME}/prorl_cli", json.dumps(config))

    def _try(self, start: Sequence[str], python: root.Python, own: Path) -> _Node:
        """By a trial box that writes. Python is run there without leave to keep bytecode: it must be there before."""
        compileall.compile_dir(root.PACKAGE / "sandbox" / "boxed", quiet=2)
        prefix = flavour.read(_said_version(start[0])).prefix
        if not _PLAIN_PATH.fullmatch(str(own)):
            note = f"they write to memory: their folder has a name that `--overlay` does not take: {own}"
            return _Node(prefix=prefix, layer=False, note=note)
        (own / "trial" / LAYER).mkdir(parents=True)
        write = python.command("-c", "open('/.prorl-was-here', 'w')")
        command = [*start, *_layer_words(own, "trial"), self.image, *write]
        ended, said = _run(command, _environment(start[0], prefix, own))
        nodelocal.remove(own / "trial")
        notes = []
        if flavour.unpacks(said):
            notes.append(f"{self.image} cannot be mounted here: each copies all of it first (is /dev/fuse there?)")
        if ended:
            notes.append(f"they write to memory, for `--overlay` does not work here: {complaint(said)}")
        return _Node(prefix=prefix, layer=not ended, note="; ".join(notes))


def _layer_words(own: Path, box: str) -> list[str]:
    folder = f"{own}/{box}/{LAYER}"
    return ["--overlay", folder, "--mount", _mount(folder, _SEEN_LAYER)]


def gate_widths(image: str, cores: int) -> dict[str, int]:
    """How many boxes of a node may be on their way at once, and how many of one image: each takes a core for a while,
    and mounting one image many times at the same time makes each slower than one after the other."""
    name = hashlib.sha256(os.fsencode(image)).hexdigest()[:16]
    return {"node": max(4, cores // 2), f"image-{name}": max(4, cores // 4)}


def find_program() -> str:
    """Apptainer, or Singularity where there is none. Raises `UserError`."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if not found:
        raise UserError("neither apptainer nor singularity is installed (or in PATH: is a module to be loaded?)")
    return found


def _said_version(program: str) -> str:
    return _run([program, "--version"], {"PATH": root.CLEAN["PATH"], "HOME": "/"})[1]


def _run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Its exit code, and what it said."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def _environment(program: str, prefix: str, own: Path) -> dict[str, str]:
    """The launcher's whole environment: no proxy, no bus (#3607), nothing that it would take as an option of ours.

    What it keeps and unpacks goes to the zygote's folder, not to a home that every node shares.
    """
    path = f"{Path(program).parent}:{root.CLEAN['PATH']}"
    kept = {f"{prefix}_{name}": str(own) for name in ("CONFIGDIR", "TMPDIR")}
    return {"PATH": path, "LANG": root.CLEAN["LANG"], "HOME": str(own), **kept}


def _mount(source: str, inside: str) -> str:
    """Quoted, for a path may hold commas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(["type=bind", f"source={source}", f"destination={inside}", "ro"])
    return text.getvalue()
