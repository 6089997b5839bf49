"""What an image is known by, from everything that can change it; pure.

`lock` names the result exactly, besides the name that recipes go by. `versioned` names what its author declared, so
that a comment in a script rebuilds nothing. `scratch` is `lock` for those who build anew each time. Not in a key: what
a box gets from prorl at its start (nothing of prorl lies in an image), and the runtime's version, which the manifest
records.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any, Literal

from prorl_cli.errors import UserError
from prorl_cli.images.definition import Built, Definition
from prorl_cli.images.digests import canonical

Mode = Literal["scratch", "versioned", "lock"]
MODES: tuple[Mode, ...] = ("scratch", "versioned", "lock")

RECIPE = 1
"""Raised when the same definition would be built otherwise than before."""

COMPRESSOR = "gzip"
"""What every reader of SIF files knows."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What else decides the result."""

    arch: str
    compressor: str = COMPRESSOR


def facts_here() -> Facts:
    """Those of this machine."""
    return Facts(arch=_ARCHITECTURES.get(platform.machine(), platform.machine()))


def key(definition: Definition, mode: Mode, facts: Facts) -> str:
    """SHA-256 (hex). Raises `UserError` for `versioned` where no version is declared."""
    what = _declared(definition, facts) if mode == "versioned" else _everything(definition, facts)
    return canonical({"mode": mode, "recipe": RECIPE, **what})


def _declared(definition: Definition, facts: Facts) -> dict[str, Any]:
    if not definition.versions:
        raise UserError(
            f"{definition.path} declares no version, which `versioned` goes by: add a line `version 1` to its %labels, "
            "or build it as `lock`"
        )
    bases = [base.digest or base.reference for base in definition.bases]
    return {"name": definition.name, "versions": definition.versions, "bases": bases, "arch": facts.arch}


def _everything(definition: Definition, facts: Facts) -> dict[str, Any]:
    stages = [_stage(stage) for stage in definition.stages]
    return {"name": definition.name, "stages": stages, "arch": facts.arch, "compressor": facts.compressor}


def _stage(stage: Built) -> dict[str, Any]:
    """A local base and the files are what they hold, wherever they lie."""
    local = stage.base.path is not None
    taken = stage.base.reference.removeprefix(str(stage.base.path)) if local else stage.base.reference
    return {
        "base": [stage.base.kind, taken, stage.base.digest],
        "header": stage.header,
        "sections": [[s.name, s.words, [line.text for line in s.lines]] for s in stage.sections],
        "files": [
            [entry.copied.stage, entry.copied.destination, entry.copied.source if entry.copied.stage else ""]
            + [[each.path, each.mode, each.digest] for each in entry.tree]
            for entry in stage.inputs
        ],
    }
