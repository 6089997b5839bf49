"""What a run directory itself says about how one of its jobs ended.

Called by whoever shows a run or asks `state` about its jobs; what is read here was written by the run's own processes
and by the batch script.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.state import Recorded
from prorl_cli.slurm.submit import Job
from prorl_cli.spool.members import Outcome, current_attempt, read_claim, read_endpoints, read_outcome


def recorded(run: RunDir, job: Job) -> Recorded:
    """How its job ended as far as the run knows: the outcome of the attempt that it became, else the exit code of its
    batch script."""
    attempt = _attempt_of(run, job.job_id)
    ended = _read(run.batch_exit(job.token))
    when = float(ended.get("ended", 0)) or _written(run.exit(attempt)) or 0.0
    heard = max((time for time in (job.submitted_at, _last_word(run, attempt), when) if time), default=None)
    if (outcome := _outcome(run, attempt)) is not None:
        return Recorded(
            state="COMPLETED" if outcome.state == "done" else "FAILED", ended=when, heard=heard,
            reason=f"{outcome.state}: {outcome.reason}",
        )  # fmt: skip
    if ended:
        code = int(ended.get("code", 1))
        state = "FAILED" if code else "COMPLETED"
        return Recorded(state=state, reason=f"its script ended with exit code {code}", ended=when, heard=heard)
    return Recorded(heard=heard)


def _attempt_of(run: RunDir, job_id: int) -> int:
    """The newest attempt that ran in this job; 0 for none."""
    for attempt in range(current_attempt(run), 0, -1):
        if (read_claim(run, attempt) or {}).get("job_id") == job_id:
            return attempt
    return 0


def _outcome(run: RunDir, attempt: int) -> Outcome | None:
    try:
        return read_outcome(run, attempt) if attempt else None
    except CorruptRecord:
        return None


def _last_word(run: RunDir, attempt: int) -> float | None:
    """When any process of the attempt last wrote its heartbeat."""
    if not attempt:
        return None
    times = (_written(run.endpoint(peer.incarnation)) for peer in read_endpoints(run, attempt))
    return max((time for time in times if time is not None), default=None)


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any]:
    data = fsio.read(path)
    try:
        found = json.loads(data) if data else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
