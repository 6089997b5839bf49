"""A researcher's HF folder as weights 000000: one safetensors file, untied, named as transformers names its tensors.

Untied because the learner trains input and output embeddings apart and every engine must agree with it. Refuses a
folder that transformers does not load whole. Called by the room's main.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from prorl_cli.errors import UserError
from prorl_cli.spool.canary import write_canary
from prorl_cli.spool.tensors import tensor_digest

COPIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""What travels unchanged, where it is there."""


def copy_model(model: Path, folder: Path) -> dict[str, str]:
    """Fill `folder` with an untied copy of the HF folder `model`; returns the tensors' digests. `UserError` when it
    cannot be loaded or untied. Tensors keep the type they are stored in."""
    transformers_logging.disable_progress_bar()
    loaded = _load(model)
    tensors = _apart(loaded.state_dict())
    for name in COPIED:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    config = json.loads((model / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}, indent=2) + "\n")
    _require_same_names(folder, tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    digests = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    write_canary(folder, loaded.float())
    return digests


def _load(model: Path) -> Any:
    try:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            model, dtype="auto", local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise UserError(f"cannot load the model in {model}: {error}") from error
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found := sorted(map(str, info[kind])):
            raise UserError(f"{model}: its weights do not fit its config.json: {kind.replace('_', ' ')}: {found[:4]}")
    return loaded


def _apart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every name with storage of its own; only what is shared is copied."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in state.items():
        apart[name] = tensor.detach().clone() if tensor.data_ptr() in seen else tensor.detach().contiguous()
        seen.add(tensor.data_ptr())
    return apart


def _require_same_names(folder: Path, tensors: dict[str, Tensor]) -> None:
    """What the untied config describes must be exactly what is stored."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    if odd := sorted(tensors.keys() ^ model.state_dict().keys()):
        raise UserError(f"the architecture {type(model).__name__} cannot be untied: {odd[:4]}")
