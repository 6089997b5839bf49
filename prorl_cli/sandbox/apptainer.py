"""The `apptainer` runtime: boxes from an image, a SIF file or an unpacked folder, in one container or in one each.

Where it works all boxes of a worker share one container, in which they have walls and a root of their own
(`OneContainer`); else each is one long-lived `exec` (`ContainerEach`). Refuses an image that is not there. Called by
`factory`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import nodelocal
from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import container, flavour, root
from prorl_cli.sandbox.boxed import rooted
from prorl_cli.sandbox.boxed.launched import BOX, LAYER, complaint
from prorl_cli.sandbox.parent import GATES
from prorl_cli.sandbox.runtimes import Zygote

_IN_MEMORY = ["--writable-tmpfs"]

_PLAIN_PATH = re.compile(r"[\w./+-]+", re.ASCII)
"""`--overlay` takes colons and commas for its own."""

_SEEN_LAYER = f"{root.HOME}/layer"
"""Where a box finds its own folder for a moment, to count what it writes."""

_TAIL_S = 110.0
"""A box asked for while 64 others are: those before it take 0.1–0.3 s of processor each."""


class _Apptainer:
    """What both have in common. Boxes are from `image`, which records name."""

    name = "apptainer"
    remedy = "`apptainer exec IMAGE true` must work on every rollout node; or say sandbox.runtime: bwrap"
    writes = True

    def __init__(self, tools: root.Tools, sandbox: Sandbox) -> None:
        """Raises `UserError` where the image is not there."""
        self.image = str(Path(sandbox.image).absolute())
        self._tools = tools
        if not Path(self.image).exists():
            raise UserError(f"sandbox.image: there is no {self.image}")

    def _begin(self) -> tuple[str, root.Python, list[str]]:
        """The program, prorl's interpreter, and the first words of a command."""
        program, python = container.find_program(), root.find_python(root.interpreter())
        return program, python, container.walled(program, python, self._tools)


class OneContainer(_Apptainer):
    """All boxes of a worker in one container: it is mounted once, and a box is up as soon as one below bwrap."""

    ready_s = 10.0

    def zygote(self, own: Path | None) -> Zygote:
        assert own, "its zygote has a folder"
        program, python, start = self._begin()
        (own / "private").mkdir()
        mounts = [
            *container.mount_image(program, Path(self.image), rooted.IMAGE),
            *container.mount(str(own), rooted.NODE),
            *container.mount(str(own.parent), rooted.SCRATCH),
            *container.mount(str(own / "private"), rooted.PRIVATE),
        ]
        serve = python.command("-c", root.SERVE, f"{root.HOME}/prorl_cli")
        facts = {
            "serve": self._tools.serve,
            "tools": self._tools.inside,
            "root": {"lower": rooted.IMAGE, "binds": []},
            "drop_root": False,
            "hidden": python.hidden,
        }
        return Zygote(
            kind="contained",
            command=[*start, *mounts, self.image, *serve],
            facts=facts,
            environment=container.environment(program, own),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What was found here, once a worker: whether boxes can keep a `layer` on disk, and what they do without."""

    layer: bool
    note: str


class ContainerEach(_Apptainer):
    """A container for each box, once it was tried how writes are best kept; `because` of what it is not one for all."""

    ready_s = 10.0 + _TAIL_S

    def __init__(self, tools: root.Tools, sandbox: Sandbox, because: str) -> None:
        super().__init__(tools, sandbox)
        self._because = because
        self._limits = root.limits_of(sandbox)
        self._node: _Node | None = None

    def zygote(self, own: Path | None) -> Zygote:
        assert own, "its zygote has a folder"
        program, python, start = self._begin()
        node = self._node or self._try(start, python, own)
        self._node = node if node.layer else None  # what failed may have been a busy node
        kept = _layer_words(own, BOX) if node.layer else _IN_MEMORY
        facts = {
            "tools": self._tools.names,
            "launch": [*start, *kept, self.image, *self._serve(python, node.layer)],
            "environment": container.environment(program, own),
            "layer": node.layer,
            "note": node.note,
            "gate": str(own.parent / GATES),
            "widths": gate_widths(self.image, os.cpu_count() or 1),
        }
        return Zygote(kind="launched", command=root.plain_command(own), facts=facts)

    def _serve(self, python: root.Python, layer: bool) -> list[str]:
        tools = {"serve": self._tools.serve, "tools": self._tools.inside}
        seen = {"layer": _SEEN_LAYER if layer else "", "hidden": [*python.hidden, *([_SEEN_LAYER] if layer else [])]}
        config = {"limits": self._limits, "own": root.HOME, **seen, **tools}
        return python.command("-c", root.FURNISH, f"{root.HOME}/prorl_cli", json.dumps(config))

    def _try(self, start: Sequence[str], python: root.Python, own: Path) -> _Node:
        """By a trial box that writes."""
        each = f"each has a container of its own: {self._because}"
        if not _PLAIN_PATH.fullmatch(str(own)):
            note = f"they write to memory: their folder has a name that `--overlay` does not take: {own}"
            return _Node(layer=False, note=f"{each}; {note}")
        (own / "trial" / LAYER).mkdir(parents=True)
        write = python.command("-c", "open('/.prorl-was-here', 'w')")
        environment = container.environment(start[0], own)
        ended, said = container.run([*start, *_layer_words(own, "trial"), self.image, *write], environment)
        nodelocal.remove(own / "trial")
        if ended and container.run([*start, *_IN_MEMORY, self.image, *write], environment)[0]:
            raise UserError(f"no container of {self.image} can be started: {complaint(said)}")
        notes = [each]
        if flavour.unpacks(said):
            notes.append(f"{self.image} cannot be mounted here: each copies all of it first (is /dev/fuse there?)")
        if ended:
            notes.append(f"they write to memory, for `--overlay` does not work here: {complaint(said)}")
        return _Node(layer=not ended, note="; ".join(notes))


def _layer_words(own: Path, box: str) -> list[str]:
    folder = f"{own}/{box}/{LAYER}"
    return ["--overlay", folder, *container.mount(folder, _SEEN_LAYER, "ro")]


def gate_widths(image: str, cores: int) -> dict[str, int]:
    """How many boxes of a node may be on their way at once, and how many of one image: each takes a core for a while,
    and mounting one image many times at the same time makes each slower than one after the other."""
    name = hashlib.sha256(os.fsencode(image)).hexdigest()[:16]
    return {"node": max(4, cores // 2), f"image-{name}": max(4, cores // 4)}
