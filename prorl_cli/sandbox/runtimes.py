"""What the boxes of a worker run in: `bwrap` and `process` here, `apptainer` in its own module.

A runtime says how its zygote is started and what that must know; it starts nothing itself. Refuses what this machine
lacks, in words. Called by `factory` and `parent`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from prorl_cli.errors import UserError
from prorl_cli.sandbox import capabilities, hostroot, root
from prorl_cli.sandbox.boxed.isolation import NOBODY


class Runtime(Protocol):
    """`image` is what a record says its calls ran in; a box is ready within `ready_s` of being asked for. Its zygote
    gets a folder on the node's disk if the boxes have `writes` to keep there."""

    name: str
    image: str
    remedy: str
    ready_s: float
    writes: bool

    def command(self, control: int, own: Path | None) -> list[str]:
        """The command line of a zygote with folder `own`; it inherits descriptor `control`. Raises `UserError`."""

    def facts(self) -> dict[str, Any]:
        """What the zygote's kind of boxes must know besides the limits; asked after `command`. Raises `UserError`."""


class Process:
    """Plain processes: a session and a folder of their own, limits, and no walls."""

    name = image = "process"
    remedy = ""
    ready_s = 10.0
    writes = True

    def __init__(self, tools: root.Tools) -> None:
        self._tools = tools

    def command(self, control: int, own: Path | None) -> list[str]:
        assert own, "its zygote has a folder"
        return root.plain_command(control, own)

    def facts(self) -> dict[str, Any]:
        return {"serve": self._tools.serve, "tools": [str(folder) for folder in self._tools.folders]}


class Bwrap:
    """Namespaces of their own. Below a root that holds Python and nothing else, or, where there is an image or a tool
    that needs one, a whole root for each box: the image's folder, or the host's programs."""

    name = "bwrap"
    remedy = "install package bubblewrap, or say sandbox.runtime: process, which promises no isolation"
    ready_s = 10.0

    def __init__(self, tools: root.Tools, image: str = "") -> None:
        self.image = image or self.name
        self.writes = bool(image or capabilities.ANYTHING.intersection(tools.serve))
        self._folder = image
        self._tools = tools
        self._root: dict[str, Any] | None = None

    def command(self, control: int, own: Path | None) -> list[str]:
        bwrap = shutil.which("bwrap")
        if not bwrap:
            raise UserError("bwrap is not installed")
        python = root.find_python(root.interpreter())
        further = self._whole_root(own) if own else ()
        return root.bwrap_command(bwrap, python, control, self._tools, root.is_root(), further)

    def _whole_root(self, own: Path) -> list[str]:
        if self._folder:
            mounts = [(str(_unpacked(self._folder)), "/image")]
            self._root = {"lower": "/image", "binds": []}
        else:
            binds = hostroot.build(own / "host")
            mounts = [(source, f"/host{inside}") for source, inside in binds]
            self._root = {"lower": "/node/host", "binds": [(f"/host{inside}", inside) for _, inside in binds]}
        if root.is_root():
            _give_to_nobody(own)
        return root.root_words(own.parent, own, mounts)

    def facts(self) -> dict[str, Any]:
        served = {"serve": self._tools.serve, "tools": self._tools.inside}
        return {**served, "root": self._root, "drop_root": root.is_root()}


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
