"""What the boxes of a worker run in: `bwrap` and `process` here, `apptainer` in a module of its own.

A runtime says how its zygote is started and what that must know; it starts nothing itself. Refuses what this machine
lacks, in words. Called by `factory` and `parent`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from prorl_cli.errors import UserError
from prorl_cli.recipe import ANYTHING
from prorl_cli.sandbox import hostroot, root
from prorl_cli.sandbox.boxed import rooted
from prorl_cli.sandbox.boxed.isolation import NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class Zygote:
    """Its `command` line with its whole `environment`, the `kind` of boxes that it makes (`boxed.zygote`), and the
    `facts` that this kind must know besides the limits."""

    kind: str
    command: list[str]
    facts: dict[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: root.CLEAN)


class Runtime(Protocol):
    """`image` is what a record says its calls ran in; a box is ready within `ready_s` of being asked for. Its zygote
    gets a folder on the node's disk if the boxes have `writes` to keep there."""

    name: str
    image: str
    remedy: str
    ready_s: float
    writes: bool

    def zygote(self, own: Path | None) -> Zygote:
        """One with folder `own`. Raises `UserError`."""


class Process:
    """Plain processes: a session and a folder of their own, limits, and no walls."""

    name = image = "process"
    remedy = ""
    ready_s = 10.0
    writes = True

    def __init__(self, tools: root.Tools) -> None:
        self._tools = tools

    def zygote(self, own: Path | None) -> Zygote:
        assert own, "its zygote has a folder"
        facts = {"serve": self._tools.serve, "tools": [str(folder) for folder in self._tools.folders]}
        return Zygote(kind="plain", command=root.plain_command(own), facts=facts)


class Bwrap:
    """Namespaces of their own. Below a root that holds Python and nothing else, or, where there is an image or a tool
    that needs one, a whole root for each box: the image's folder, or the host's programs."""

    name = "bwrap"
    remedy = "install package bubblewrap, or say sandbox.runtime: process, which promises no isolation"
    ready_s = 10.0

    def __init__(self, tools: root.Tools, image: str = "") -> None:
        self.image = image or self.name
        self.writes = bool(image or ANYTHING.intersection(tools.serve))
        self._folder = image
        self._tools = tools

    def zygote(self, own: Path | None) -> Zygote:
        bwrap = shutil.which("bwrap")
        if not bwrap:
            raise UserError("bwrap is not installed")
        python, as_root = root.find_python(root.interpreter()), root.is_root()
        begins, further = self._whole_root(own) if own else (None, ())
        served = {"serve": self._tools.serve, "tools": self._tools.inside}
        return Zygote(
            kind="walled",
            command=root.bwrap_command(bwrap, python, self._tools, as_root, further),
            facts={**served, "root": begins, "drop_root": as_root},
        )

    def _whole_root(self, own: Path) -> tuple[dict[str, Any], Sequence[str]]:
        """What boxes begin with (`boxed.rooted.Root`), and the words that bring it to the zygote."""
        if self._folder:
            mounts = [(str(_unpacked(self._folder)), rooted.IMAGE)]
            begins: dict[str, Any] = {"lower": rooted.IMAGE, "binds": []}
        else:
            binds = hostroot.build(own / "host")
            mounts = [(source, f"/host{inside}") for source, inside in binds]
            begins = {"lower": f"{rooted.NODE}/host", "binds": [(f"/host{inside}", inside) for _, inside in binds]}
        if root.is_root():
            _give_to_nobody(own)
        return begins, root.root_words(own.parent, own, mounts)


def _unpacked(image: str) -> Path:
    folder = Path(image).absolute()
    if folder.is_file():
        raise UserError(f"sandbox.image: bwrap takes an unpacked image, and {folder} is a file")
    if not (folder / "bin").exists():
        raise UserError(f"sandbox.image: there is no unpacked image in {folder}")
    return folder


def _give_to_nobody(folder: Path) -> None:
    """Whom boxes of a worker that runs as root belong to."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
