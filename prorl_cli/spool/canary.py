"""The canary: a few fixed tokens and the publisher's own logprobs of them, one more file of a weights folder.

An engine whose tensors cannot be read back proves by it that it computes what the publisher computed. Written by
whoever publishes weights; read by engines, without torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from prorl_cli import fsio
from prorl_cli.trajectory import Record

if TYPE_CHECKING:
    import torch

CANARY = "canary.json"
LENGTH = 48
"""Longer than one block of any engine's cache for CPUs (32), short enough to cost nothing."""


class Canary(Record):
    """`logprobs[i]` is that of `token_ids[i + 1]` after everything before it, float32, temperature 1."""

    token_ids: list[int]
    logprobs: list[float]


def canary_tokens(vocab_size: int) -> list[int]:
    """The same for every model of that vocabulary; spread over all of it."""
    words = (hashlib.sha256(b"canary %d" % number).digest() for number in range(LENGTH))
    return [int.from_bytes(word) % vocab_size for word in words]


def measure(model: Any) -> Canary:
    """The canary of a transformers model as it is, whatever its type."""
    import torch

    ids = canary_tokens(int(model.get_input_embeddings().num_embeddings))
    with torch.no_grad():
        tokens = torch.tensor([ids], device=model.device)
        logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[0, 1:, None]).squeeze(1)
    return Canary(token_ids=ids, logprobs=logprobs.tolist())


def write_canary(folder: Path, model: Any) -> None:
    """Into a weights folder that is being made, before it is sealed."""
    (folder / CANARY).write_bytes(encode(measure(model)))


def encode(canary: Canary) -> bytes:
    """The content of the file."""
    return msgspec.json.encode(canary)


def read_canary(folder: Path) -> Canary | None:
    """None where the publisher wrote none, or something else."""
    try:
        return msgspec.json.decode(fsio.read(folder / CANARY) or b"", type=Canary)
    except msgspec.DecodeError:
        return None


def distance(canary: Canary, logprobs: list[float]) -> float:
    """Mean absolute distance of the first tokens' logprobs from the publisher's; NaN stays NaN."""
    pairs = list(zip(canary.logprobs, logprobs, strict=False))
    return sum(abs(want - got) for want, got in pairs) / max(1, len(pairs))
