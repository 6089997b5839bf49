"""Which runs this user started: one small file each in the user's state folder; and which run a job belongs to.

The files are only a convenience: a run's own directory knows its jobs, and a job's comment and folder know its run.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from prorl_cli.errors import UserError


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


def find(name: Path | None) -> Path:
    """The run that a person means: a directory, a job's id, or the newest run when nothing is said."""
    if name is None:
        return _newest()
    if name.exists() or not str(name).partition("+")[0].isdigit():
        return name
    job_id = int(str(name).partition("+")[0])
    return _of_remembered(job_id) or _of_comment(job_id)


def _newest() -> Path:
    found = next(iter(remembered()), None)
    if found is None:
        raise UserError("you have no run yet: name its directory, or start one with `prorl launch RECIPE`")
    return found


def _of_remembered(job_id: int) -> Path | None:
    from prorl_cli.rundir import RunDir
    from prorl_cli.slurm.queued import submitted

    return next((root for root in remembered() if any(job.job_id == job_id for job in submitted(RunDir(root)))), None)


def _of_comment(job_id: int) -> Path:
    """A job of ours carries a comment, and works in its submission's folder below its run."""
    from prorl_cli.slurm.commands import Refused, slurm
    from prorl_cli.slurm.script import comment

    try:
        text = slurm(["squeue", "-h", "-a", "--states=all", "-o", "%k|%Z", "-j", str(job_id)])
    except Refused:
        text = ""
    for said, _, folder in (line.partition("|") for line in text.splitlines()):
        submission = Path(folder)
        if said == comment(submission.name.removeprefix("submitted-")):
            return submission.parent.parent
    raise UserError(f"job {job_id} belongs to none of your runs (`prorl ls`), and Slurm knows no such job of prorl")
