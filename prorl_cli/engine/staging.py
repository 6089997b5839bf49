"""The private folder of one vLLM engine on its node's own disk: checked copies of weights, and the server's sockets.

A version is copied and every byte checked before anything pauses; no other process can change the copy. Folders of
engines that were killed together with their keeper are removed by the next engine there. Called by `vllm`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_cli import nodelocal
from prorl_cli.engine.swap import Unproved
from prorl_cli.errors import UserError
from prorl_cli.spool.canary import Canary, read_canary
from prorl_cli.spool.weights import WeightManifest

PREFIX = "prorl-engine-"
SOCKET_PATH = 107
"""Bytes that the path of a Unix socket may have."""
SOCKET_NAME = 48
"""Bytes that vLLM appends to the folder for one."""
CHUNK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A version on this node's disk: the very bytes of its manifest."""

    version: int
    lineage: str
    folder: Path
    canary: Canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a gate has to know of a model."""

    vocab_size: int
    max_position_embeddings: int | None


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that only this user can read, locked for as long as the block lasts and removed after it."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) + len(PREFIX) + SOCKET_NAME > SOCKET_PATH:
        base = Path("/tmp")
    nodelocal.sweep(base, PREFIX)
    made = nodelocal.make(base, PREFIX)
    try:
        yield made.folder
    finally:
        nodelocal.remove(made.folder)
        os.close(made.lock)


def stage(into: Path, folder: Path, manifest: WeightManifest) -> Staged:
    """Copy a published version below `into`; `Unproved` names what is not what its manifest says."""
    target = into / folder.name
    shutil.rmtree(target, ignore_errors=True)
    for name, digest in manifest.files.items():
        try:
            found = _copy(folder / name, target / name)
        except OSError as error:
            raise Unproved(f"cannot stage {folder / name}: {error.strerror or error}") from error
        if found != digest.sha256:
            raise Unproved(f"{folder / name} is not the file that its manifest names")
    canary = read_canary(target)
    if canary is None:
        raise Unproved(f"{folder} has no usable canary: vLLM's weights cannot be proved without one")
    return Staged(version=manifest.version, lineage=manifest.lineage, folder=target, canary=canary)


def forget_others(staged: Staged) -> None:
    """Remove the copies of every other version."""
    for folder in staged.folder.parent.iterdir():
        if folder != staged.folder:
            shutil.rmtree(folder, ignore_errors=True)


def read_shape(folder: Path) -> Shape:
    """From the model's config. `UserError` for tied embeddings: vLLM on CPUs keeps the old head at every reload, and
    what prorl publishes is untied."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    if config.get("tie_word_embeddings"):
        raise UserError(
            f"{folder}: the model's embeddings are tied, and vLLM for CPUs cannot reload those: it must be published "
            "untied, as prorl's own warm start does"
        )
    text = config.get("text_config") or config
    return Shape(vocab_size=int(text["vocab_size"]), max_position_embeddings=text.get("max_position_embeddings"))


def _copy(source: Path, target: Path) -> str:
    """SHA-256 (hex) of the bytes copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while block := reader.read(CHUNK):
            digest.update(block)
            writer.write(block)
    return digest.hexdigest()
