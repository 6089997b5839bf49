"""Weights of the embedded engine: staged from a published folder, loaded in place, proved by digest.

`stage` does everything slow before anything pauses. `load` changes the model between two decode steps and raises
`Unproved` unless every tensor that is then in the model has the digest of the manifest. Called by `follow`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_safetensors
from transformers import AutoConfig, AutoModelForCausalLM

from prorl_cli import fsio
from prorl_cli.engine.swap import Unproved
from prorl_cli.spool.tensors import tensor_digest
from prorl_cli.spool.weights import WeightManifest

SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A version in memory, every tensor's digest already checked."""

    version: int
    tensors: dict[str, torch.Tensor]
    digests: dict[str, str]


def build_model(folder: Path) -> Any:
    """The model that a folder's config describes, float32 on the CPU, with weights that mean nothing yet."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    return model.eval().requires_grad_(False)


def stage(folder: Path, manifest: WeightManifest) -> Staged:
    """Read a published version and check its files and tensors; `Unproved` names what differs."""
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(name for name in manifest.files if name.endswith(SUFFIX)):
        data = fsio.read(folder / name)
        if data is None or hashlib.sha256(data).hexdigest() != manifest.files[name].sha256:
            raise Unproved(f"{folder / name} is not the file that its manifest names")
        tensors |= parse_safetensors(data)
    _same({name: tensor_digest(tensor) for name, tensor in tensors.items()}, manifest.tensors, f"{folder}")
    return Staged(version=manifest.version, tensors=tensors, digests=manifest.tensors)


def load(model: Any, staged: Staged) -> None:
    """Copy every staged tensor into the model and prove it: each name consumed, nothing left unset, equal digests."""
    state = model.state_dict()
    _complete(state, staged)
    for name, tensor in staged.tensors.items():
        state[name].copy_(tensor)
    # A stored bfloat16 is exact in float32, so casting back proves the very bytes of the manifest.
    held = {name: tensor_digest(state[name].to(tensor.dtype)) for name, tensor in staged.tensors.items()}
    _same(held, staged.digests, f"version {staged.version} in the model")


def _complete(state: dict[str, torch.Tensor], staged: Staged) -> None:
    """Tied names share storage: one of them in the file sets them all."""
    known = {name for name in staged.tensors if name in state and state[name].shape == staged.tensors[name].shape}
    if strange := staged.tensors.keys() - known:
        raise Unproved(f"version {staged.version} has tensors that do not fit the model: {_few(strange)}")
    filled = {state[name].data_ptr() for name in known}
    if missing := {name for name, tensor in state.items() if tensor.data_ptr() not in filled}:
        raise Unproved(f"version {staged.version} lacks tensors of the model: {_few(missing)}")


def _same(found: dict[str, str], expected: dict[str, str], where: str) -> None:
    if found != expected:
        names = {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}
        raise Unproved(f"{where}: {len(names)} tensors differ from the manifest: {_few(names)}")


def _few(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
