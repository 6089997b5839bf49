"""After every process of an attempt is gone: remove the temporary files that killed ones left anywhere in the run.

Refuses to judge whether somebody still writes: only who ended all processes of a run may call it.
"""

from __future__ import annotations

from prorl_cli import fsio
from prorl_cli.rundir import RunDir


def tidy_run(run: RunDir) -> int:
    """Remove every leftover; returns how many there were."""
    folders = [run.root, *(path for path in run.root.rglob("*") if path.is_dir() and not path.is_symlink())]
    return sum(len(fsio.sweep(folder, older_than_s=-1.0)) for folder in folders if folder.is_dir())
