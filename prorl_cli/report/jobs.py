"""The Slurm jobs of a run as a picture shows them, asked for seldom.

Called by `status`, `ls` and `explain`. A local run has none, and no command is started for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from prorl_cli.rundir import RunDir
from prorl_cli.slurm.commands import slurm
from prorl_cli.slurm.queued import submitted
from prorl_cli.slurm.reasons import explain
from prorl_cli.slurm.records import recorded
from prorl_cli.slurm.state import JobState, Recorded, job_states
from prorl_cli.slurm.submit import Job

ASK_EVERY_S = 15.0
"""Every question is load on a controller that the whole cluster shares."""

PICTURE_TIMEOUT_S = 10.0
"""A picture of the run must not wait for a controller that does not answer."""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `age_s` is how old the news is, None when nothing was ever heard; `start_estimate` in unix seconds."""

    id: int
    state: str
    reason: str
    words: str
    nodes: str
    time_left_s: float | None
    start_estimate: float | None
    source: str
    age_s: float | None
    satellite: int | None = None

    @property
    def waits(self) -> bool:
        """In the queue."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")


class JobWatch:
    """The jobs of one run; the controller is asked at most every `ASK_EVERY_S`."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._next = 0.0
        self._found: list[JobStatus] = []

    def look(self) -> list[JobStatus]:
        """All jobs of the run, oldest first."""
        if time.monotonic() >= self._next:
            self._found = read_jobs([self._run])[0]
            self._next = time.monotonic() + ASK_EVERY_S
        return self._found


def read_jobs(runs: Sequence[RunDir], ask: Callable[[Sequence[str]], str] | None = None) -> list[list[JobStatus]]:
    """The jobs of each run, with one question for all of them together."""
    found = [submitted(run) for run in runs]
    records: dict[int, Recorded] = {
        job.job_id: recorded(run, job) for run, mine in zip(runs, found, strict=True) for job in mine
    }
    states = job_states(records, ask=ask or (lambda words: slurm(words, PICTURE_TIMEOUT_S)))
    return [[_status(states[job.job_id], job) for job in mine] for mine in found]


def _status(state: JobState, job: Job) -> JobStatus:
    return JobStatus(
        id=state.job_id, state=state.state, reason=state.reason, words=explain(state).what, nodes=state.nodes,
        time_left_s=state.time_left_s, start_estimate=state.start_estimate, source=state.source, age_s=state.age_s,
        satellite=job.satellite,
    )  # fmt: skip


def main_job(found: Sequence[JobStatus]) -> JobStatus | None:
    """The one that a picture is about: what runs, else what waits first, else the last that ended."""
    main = [job for job in found if job.satellite is None]
    active = [job for job in main if job.state in ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")]
    waiting = [job for job in main if job.waits]
    return next(iter([*active, *waiting, *reversed(main)]), None)
