"""What is known of an image: written once beside it, read by whoever uses it.

Called by `store` and `bundle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from prorl_cli.images.key import Mode

FORMAT = 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`number` is that of the claim under which it was built; of one key, the highest counts."""

    format: int = FORMAT
    key: str
    mode: Mode
    name: str
    number: int
    digest: str
    """SHA-256 (hex) of the SIF file."""
    size: int
    mtime_ns: int
    """Of the stored file: while it and the size stay, the bytes are taken for what was hashed."""
    arch: str
    built_at: str
    built_s: float
    node: str
    runtime: str
    """Which program built it, and its version."""
    bases: list[str]
    """Their digests; for a tag that could move, the reference."""
    warnings: list[str]
    versions: list[tuple[str, str]]
    log: str
    """SHA-256 (hex) of the builder's log."""
    bash: str
    python: str
    packages: dict[str, list[str]]
    """`system` and `pip`, as the image itself lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A stored image that was whole when it was found."""

    path: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def mode(self) -> Mode:
        return self.manifest.mode

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def size(self) -> int:
        return self.manifest.size

    @property
    def built_s(self) -> float:
        return self.manifest.built_s


def object_name(digest: str) -> str:
    """The file of an image, wherever it lies."""
    return f"sha256-{digest}.sif"
