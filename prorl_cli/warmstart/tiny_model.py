"""The tiny model as an HF folder: a Llama of `recipe.warmstart`'s size, untied, that transformers and vLLM can serve.

Refuses nothing: the recipe's schema has checked the numbers. Called by the training.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from prorl_cli.agent import build_tiny_tokenizer
from prorl_cli.agent.tiny import BOS, END, VOCAB_SIZE
from prorl_cli.recipe import Recipe
from prorl_cli.spool.canary import CANARY, encode, measure
from prorl_cli.spool.tensors import tensor_digest
from prorl_cli.warmstart.folder import Folder

HEAD = 32
"""Width of a head: the narrowest that vLLM's attention kernels serve."""
ROPE_THETA = 500.0
"""Suits sequences of a few hundred tokens."""
INIT_STD = 0.06
"""Larger than usual: so narrow a model learns to copy about twice as fast from it."""


def build(recipe: Recipe) -> Any:
    """A fresh float32 `LlamaForCausalLM`; its weights depend on torch's seed."""
    numbers = recipe.warmstart
    # No padding id here: torch would freeze that token's embedding, and the tiny language pads with <end>.
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=numbers.hidden, intermediate_size=numbers.intermediate,
        num_hidden_layers=numbers.layers, num_attention_heads=numbers.hidden // HEAD,
        num_key_value_heads=numbers.hidden // HEAD, head_dim=HEAD, rope_theta=ROPE_THETA,
        max_position_embeddings=recipe.engine.max_model_len, initializer_range=INIT_STD, tie_word_embeddings=False,
        bos_token_id=BOS, eos_token_id=END, architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    return LlamaForCausalLM(config)


def as_folder(model: Any) -> Folder:
    """Everything an HF folder of the model holds."""
    tensors: dict[str, torch.Tensor] = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    # `rope_theta` at the top is where transformers 4 and what builds on it look.
    config = {**json.loads(model.config.to_json_string()), "rope_theta": ROPE_THETA, "dtype": "float32"}
    generation = GenerationConfig(bos_token_id=BOS, eos_token_id=END, pad_token_id=END, do_sample=True)
    files = {
        **_tokenizer(),
        "config.json": _json(config),
        "generation_config.json": _json(json.loads(generation.to_json_string())),
        CANARY: encode(measure(model)),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
    }
    return Folder(files=files, tensors={name: tensor_digest(tensor) for name, tensor in tensors.items()})


def _tokenizer() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        build_tiny_tokenizer(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
