"""Apptainer and SingularityCE are two programs by now: what prorl does differently for each, by its version string.

Refuses, for boxes, versions that lack what walls are made of. Pure; called by `container`, `apptainer` and `images`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prorl_cli.errors import UserError
from prorl_cli.sandbox.boxed.launched import complaint

_VERSION = re.compile(r"^(apptainer|singularity(?:-ce)?) version (\d+(?:\.\d+)+)", re.MULTILINE)

OLDEST = {"apptainer": (1, 0), "singularity-ce": (3, 10), "singularity": (3, 10)}
"""The first with `--no-eval` and `--no-mount bind-paths`. Singularity before the fork had neither."""

_SYSTEM = re.compile(r"^(\d+)\s*\|.*\|FS \(Squashfs/\*System/", re.MULTILINE)

_UNPACKS = "Converting SIF file to temporary sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """Which of them, and its version."""

    name: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))}"

    @property
    def prefix(self) -> str:
        """Of its environment variables; Apptainer heeds the other's only with a warning at every start."""
        return "APPTAINER" if self.name == "apptainer" else "SINGULARITY"


def read(said: str) -> Flavour:
    """From what `--version` said. Raises `UserError`."""
    match = _VERSION.search(said)
    if not match:
        raise UserError(f"not a version of Apptainer or Singularity: {said.strip()[:200] or 'nothing'}")
    return Flavour(name=match[1], version=tuple(map(int, match[2].split("."))))


def read_for_boxes(said: str) -> Flavour:
    """As `read`, and raises `UserError` for what boxes cannot be made with, too."""
    found = read(said)
    if found.version < OLDEST[found.name]:
        wanted = ".".join(map(str, OLDEST[found.name]))
        raise UserError(f"{said.strip()} is too old: boxes need {wanted} at least, or Apptainer")
    return found


def system_partition(listed: str) -> int:
    """The number of what an image starts from, by the words of `sif list`. Raises `UserError`."""
    match = _SYSTEM.search(listed)
    if not match:
        raise UserError(f"no packed root filesystem: {complaint(listed) or 'nothing was listed'}")
    return int(match[1])


def unpacks(said: str) -> bool:
    """Whether it copied the whole image to a folder because it could not mount it, as it does at every start then."""
    return _UNPACKS in said
