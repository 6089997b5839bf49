"""Keeps the tiny models made on this machine, each under a key of everything that decides what it becomes.

An entry is used only when every byte of it is proven; a damaged one is thrown away. Refuses to be in the way: a
cache that cannot be read or written is said and done without. Called by the room's main.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from prorl_cli import fsio
from prorl_cli.recipe import Recipe
from prorl_cli.warmstart.folder import Folder

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "reasoning-gym")
CODE = (
    "agent.tiny", "sandbox.boxed.tool_run", "sandbox.boxed.tools.calculator", "spool.canary", "tasks.arithmetic",
    "tasks.hash_fixed", "tasks.jsonl", "tasks.open", "tasks.procedural", "tasks.reasoning", "tasks.source",
    "warmstart.tiny_model", "warmstart.training", "warmstart.transcripts",
)  # fmt: skip
"""Modules that decide what a transcript says or what is made of it."""
DIGESTS = "DIGESTS.json"
"""The file of an entry that proves the others."""
ABANDONED_S = 3600.0
"""A temporary folder that nobody has written to for this long is a killed builder's."""


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    """SHA-256 (hex) of every file, the model's tensor digests, and the SHA-256 of these."""

    files: dict[str, str]
    tensors: dict[str, str]
    seal: str


def cache_root() -> Path:
    """$XDG_CACHE_HOME/prorl/warmstart, or below ~/.cache; a relative $XDG_CACHE_HOME does not count."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(asked) if asked.startswith("/") else Path("~/.cache").expanduser()
    return home / "prorl" / "warmstart"


def content_key(recipe: Recipe) -> str:
    """SHA-256 (hex) over all that decides the tiny model; the run's own seed does not."""
    tasks = [[task.source, task.options, task.weight, _files(task.source, task.options)] for task in recipe.tasks]
    parts = {
        "warmstart": recipe.warmstart.model_dump(),
        "tasks": tasks,
        "agent": [recipe.agent.system_prompt, recipe.agent.max_tokens],
        "length": recipe.engine.max_model_len,
        "packages": {name: _version(name) for name in PACKAGES} | {"python": list(sys.version_info[:2])},
        "code": {name: _sha256(Path(_module_file(name))) for name in CODE},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load(entry: Path) -> Folder | None:
    """The model of an entry; None when there is none, or a damaged one, which is removed."""
    files = {name: fsio.read(entry / name) or b"" for name in fsio.names(entry)}
    if not files:
        return None
    try:
        index = msgspec.json.decode(files.pop(DIGESTS, b""), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        index = None
    if index is None or index != _index(Folder(files=files, tensors=index.tensors)):
        fsio.remove_folder(entry)
        return None
    return Folder(files=files, tensors=index.tensors)


def store(entry: Path, folder: Folder) -> None:
    """Publish an entry whole; somebody else's equal one may stay instead."""
    fsio.make_folder(entry.parent)
    fsio.sweep(entry.parent, ABANDONED_S)
    temporary = fsio.temporary_folder(entry.parent)
    try:
        with fsio.reported(temporary):
            folder.write(temporary)
            (temporary / DIGESTS).write_bytes(msgspec.json.encode(_index(folder)))
        fsio.publish_folder(temporary, entry)
    except BaseException:
        fsio.remove_folder(temporary)
        raise


def _index(folder: Folder) -> _Index:
    tensors = msgspec.json.encode(folder.tensors, order="deterministic")
    files = {name: hashlib.sha256(data).hexdigest() for name, data in folder.files.items()}
    return _Index(files=files, tensors=folder.tensors, seal=hashlib.sha256(tensors).hexdigest())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a recipe without its tasks does without it
        return None


def _module_file(name: str) -> str:
    found = importlib.util.find_spec(f"prorl_cli.{name}")
    assert found and found.origin, name
    return found.origin


def _files(source: str, options: dict[str, object]) -> list[str]:
    """Digests of the files that a JSONL source reads."""
    if not (path := Path(source)).is_file():
        return []
    held_out = options.get("held_out")
    return [_sha256(path), *([_sha256(path.parent / held_out)] if isinstance(held_out, str) else [])]


def _sha256(path: Path) -> str:
    return hashlib.sha256(fsio.read(path) or b"").hexdigest()
