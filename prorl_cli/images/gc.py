"""Which images to remove: the least recently used, until the rest fits; pure.

Refuses to choose an image that is in use. Called by `collect`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An object: its bytes, when it was last used (seconds of any one clock), and whether it is in use."""

    digest: str
    size: int
    last_used: float
    in_use: bool


def choose(images: Iterable[Kept], *, now: float, keep_bytes: int | None, keep_s: float | None) -> list[Kept]:
    """Those unused for longer than `keep_s`, then the longest unused while all are larger than `keep_bytes`."""
    oldest_first = sorted(images, key=lambda image: (image.last_used, image.digest))
    left = sum(image.size for image in oldest_first)
    chosen = []
    for image in oldest_first:
        too_old = keep_s is not None and now - image.last_used > keep_s
        too_much = keep_bytes is not None and left > keep_bytes
        if not image.in_use and (too_old or too_much):
            chosen.append(image)
            left -= image.size
    return chosen
