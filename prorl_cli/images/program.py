"""The program that builds images: which one it is, and its command lines and environment; pure but for asking it once.

Refuses nothing that works; what its versions do differently is decided here. Called by `build`, `check` and `stage`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.images.key import COMPRESSOR
from prorl_cli.sandbox import flavour
from prorl_cli.sandbox.container import find_program
from prorl_cli.sandbox.flavour import Flavour

_OWN = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_")
_LOGIN = re.compile(r"(APPTAINER|SINGULARITY)_DOCKER_(USERNAME|PASSWORD)")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`bounded`: it hands options to mksquashfs."""

    path: str
    flavour: Flavour
    bounded: bool = True

    def __str__(self) -> str:
        return str(self.flavour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one build may use of this node: processors, and bytes of memory for the packing."""

    processors: int
    memory: int


def find_builder() -> Program:
    """Apptainer, or Singularity where there is none. Raises `UserError`."""
    return ask(find_program())


def ask(path: str) -> Program:
    """Which program that is. Raises `UserError`."""
    found = flavour.read(_said([path, "--version"]))
    return Program(path=path, flavour=found, bounded="--mksquashfs-args" in _said([path, "build", "--help"]))


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"{command[0]} does not run: {error}") from error
    return done.stdout or done.stderr


def build_command(program: Program, image: Path, definition: Path, share: Share) -> list[str]:
    """mksquashfs takes every processor and all memory of a node, whatever was given to the job (apptainer #2601)."""
    packing = f"-comp {COMPRESSOR} -processors {share.processors} -mem {max(share.memory // _MIB, 64)}M"
    bounds = ["--mksquashfs-args", packing] if program.bounded else []
    # Apptainer implies --fakeroot for definitions, SingularityCE does not.
    return [program.path, "build", "--fakeroot", *bounds, str(image), str(definition)]


def unpack_command(program: Program, image: Path, folder: Path) -> list[str]:
    """An image as a folder that its user can remove again (singularity #4517)."""
    return [program.path, "--quiet", "build", "--sandbox", "--fix-perms", str(folder), str(image)]


def run_command(program: Program, image: Path, *command: str) -> list[str]:
    """A command inside an image, with nothing of this user or node in it."""
    return [
        *(program.path, "--quiet", "exec", "--containall", "--cleanenv", "--no-home", "--no-mount", "bind-paths"),
        *("--pwd", "/", str(image), *command),
    ]


def environment(program: Program, own: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """The caller's without what would become options of a build; a cache for each build, since two that share one
    corrupt it (singularity #3634). Proxies and registry logins stay."""
    kept = {k: v for k, v in own.items() if not k.startswith(_OWN) or _LOGIN.fullmatch(k)}
    prefix = program.flavour.prefix
    places = {f"{prefix}_TMPDIR": str(scratch), f"{prefix}_CACHEDIR": str(scratch / "cache"), "TMPDIR": str(scratch)}
    if str(program) in ("apptainer 1.5.0", "apptainer 1.5.1"):
        places["APPTAINER_IGNORE_PROOT"] = "1"  # it corrupts images silently (apptainer #3560)
    return kept | places
