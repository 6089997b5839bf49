"""A small HF folder in memory: its files, and the digests of its tensors as weight manifests give them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """`files` by name; `tensors`: SHA-256 (hex) of each tensor's raw little-endian bytes."""

    files: dict[str, bytes]
    tensors: dict[str, str]

    def write(self, path: Path) -> dict[str, str]:
        """Put the files into `path`; returns `tensors`, as `publish_weights` asks."""
        for name, data in self.files.items():
            (path / name).write_bytes(data)
        return self.tensors


def digest(tensor: Any) -> str:
    """SHA-256 (hex) of a torch tensor's raw little-endian bytes, whatever its type."""
    import torch

    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
