"""A small HF folder in memory: its files, and the digests of its tensors as weight manifests give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
