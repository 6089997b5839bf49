"""Which runs this user started: one small file each in the user's state folder. Only a convenience for `ls`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def state_folder() -> Path:
    """`$XDG_STATE_HOME/prorl/runs`, by default below `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "prorl" / "runs"


def remember(root: Path) -> None:
    """Note a run; a home that cannot be written is no reason to refuse a run."""
    name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    try:
        state_folder().mkdir(parents=True, exist_ok=True)
        (state_folder() / name).write_text(str(root), encoding="utf-8")
    except OSError:
        return


def remembered() -> list[Path]:
    """Runs noted so far, newest first; ones whose folder is gone are left out."""
    if not state_folder().is_dir():
        return []
    notes = sorted(state_folder().iterdir(), key=lambda note: note.stat().st_mtime, reverse=True)
    roots = [Path(note.read_text(encoding="utf-8")) for note in notes]
    return [root for root in roots if root.is_dir()]
