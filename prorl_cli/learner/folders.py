"""Hugging Face folders as trainers read and write them: float32, plain tensor names, no code from the folder.

Called by trainers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as serialize
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from prorl_cli.errors import ProrlError
from prorl_cli.spool.canary import CANARY

WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


def settle(threads: int, seed: int, device: str = "cpu") -> None:
    """Same numbers every time: threads, seed, and on CPUs only kernels whose result is a function of their input.

    On GPUs several kernels have no such variant and would refuse to run; there a replay may differ in its last bits.
    """
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(device == "cpu")
    # on by default with the line above, for debugging: it would write all fresh memory a second time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def load_model(folder: Path) -> Any:
    """The model of a complete folder, in evaluation mode: dropout stays off."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ProrlError(f"cannot load the model of {folder}: {error}") from error
    return model.eval()


def plain_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What an HF folder holds: each storage once (tied weights under their first name)."""
    seen: set[int] = set()
    found = {}
    for name, tensor in state.items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            found[name] = tensor.detach().contiguous()
    return found


def require_plain_names(folder: Path, names: Iterable[str]) -> None:
    """`ProrlError` unless the folder stores its tensors under exactly these names."""
    stored = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            stored.update(opened.keys())
    if stored != set(names):
        odd = sorted(stored ^ set(names))[:4]
        raise ProrlError(f"{folder}: its tensors are stored under other names than transformers gives them: {odd}")


def write_folder(template: Path, folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill `folder` with `tensors` and everything else that the folder `template` has."""
    for file in template.iterdir():
        if file.is_file() and not file.name.endswith(WEIGHT_FILES) and file.name not in ("MANIFEST.json", CANARY):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text())
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
    # Serialised first, so that a full disk is an OSError with its errno and not the library's own error.
    (folder / "model.safetensors").write_bytes(serialize(tensors, metadata={"format": "pt"}))
