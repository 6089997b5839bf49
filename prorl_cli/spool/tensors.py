"""How a tensor is named by its content in a weight manifest: one convention for writers, loaders and provers."""

from __future__ import annotations

import hashlib

import torch


def tensor_digest(tensor: torch.Tensor) -> str:
    """SHA-256 (hex) of the raw little-endian bytes of a CPU tensor of any type and layout."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
