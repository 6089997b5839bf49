"""What COPY may take from the build context: only what a definition's %files carries over unchanged.

Refuses what is not there, what lies outside, links, and folders that a `.dockerignore` may thin out. Called by
`stages`.
"""

from __future__ import annotations

import os
import posixpath
from pathlib import Path


def inside(source: str) -> str:
    """`source` relative to the context, whose root Docker means by `/`."""
    return posixpath.normpath(source.lstrip("/") or ".")


def problem_of(context: Path, source: str) -> str:
    """Why `source` cannot be copied; empty when it can."""
    path = inside(source)
    if path.startswith(".."):
        return f"{source} lies outside the build context {context}"
    found = context / path
    if not os.path.lexists(found):
        return f"there is no {source} in the build context {context}: see --context"
    if found.is_dir() and (context / ".dockerignore").exists():
        return f"{source} is a folder, and .dockerignore says what of it stays out: copy what you need by name"
    if link := _first_link(found):
        return f"{link.relative_to(context)} is a link, which a definition would follow: copy what it points to"
    return ""


def _first_link(found: Path) -> Path | None:
    if found.is_symlink():
        return found
    for folder, folders, files in os.walk(found):
        for name in (*folders, *files):
            if (path := Path(folder, name)).is_symlink():
                return path
    return None
