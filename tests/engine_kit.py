"""Shared by the engine's tests: tiny random models, published versions, and the full forward pass as the oracle."""

import hashlib
import math

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from prorl_cli.spool.canary import write_canary
from prorl_cli.spool.weights import publish_weights, read_weights

VOCAB = 102

SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip

CONFIGS = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama-gqa": lambda: LlamaConfig(**{**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "llama-tied": lambda: LlamaConfig(**{**SHAPE, "tie_word_embeddings": True}),
    "qwen2": lambda: Qwen2Config(**{**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 1}),
    "qwen3": lambda: Qwen3Config(**SHAPE),
}


def tiny_model(seed, kind="llama"):
    """A random model whose distribution is far from uniform and differs from seed to seed."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[kind](), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval().requires_grad_(False)


def digests(folder):
    tensors = load_file(folder / "model.safetensors")
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


def publish(run, version, model, *, change=lambda folder: None):
    """Publish `model` as `version`; `change` may spoil the folder before it is sealed."""

    def write(folder):
        model.save_pretrained(folder)
        write_canary(folder, model)
        found = digests(folder)
        change(folder)
        return found

    publish_weights(run, version, write)
    return read_weights(run, version)


def respell(folder, edit):
    """Rewrite the weights file of a folder with `edit(tensors)` applied."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


@torch.no_grad()
def oracle(models, prompt, ids, spans, temperature=1.0):
    """Logprob of every generated id by a full forward pass of the version that its span names."""
    expected = [None] * len(ids)
    tokens = torch.tensor([[*prompt, *ids[:-1]]])
    for version, start, end in spans:
        logits = models[version](tokens).logits[0].float() / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        for position in range(start, end):
            expected[position] = logprobs[len(prompt) + position - 1, ids[position]].item()
    return expected


def worst(models, prompt, ids, logprobs, spans, temperature=1.0):
    """Largest distance from the oracle; an uncovered token is an error."""
    expected = oracle(models, prompt, ids, spans, temperature)
    # `max` would step over a NaN.
    if not all(map(math.isfinite, logprobs)):
        return math.inf
    return max(abs(got - want) for got, want in zip(logprobs, expected, strict=True))
