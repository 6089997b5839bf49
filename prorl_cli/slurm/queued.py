"""The jobs of one run: which Slurm still holds, satellites that are missing, and the end of those that only wait.

Asks the controller once for all of them. Called by the job itself, by its satellites and by the commands `resume`,
`stop` and `launch --wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.answers import QUEUE_FORMAT, Row, queue_rows
from prorl_cli.slurm.commands import Refused, slurm
from prorl_cli.slurm.state import ENDED
from prorl_cli.slurm.submit import Job, find_job, new_token, read_job, read_request, record_job, submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A job of the run that Slurm holds, and the state of its leader (PENDING, RUNNING, COMPLETING …)."""

    job: Job
    state: str
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Nothing of it runs yet, or again."""
        return self.state == "PENDING"


def submitted(run: RunDir) -> list[Job]:
    """Every job of the run so far, oldest first."""
    jobs = (read_job(run, token) for token in run.tokens())
    return sorted((job for job in jobs if job is not None), key=lambda job: job.submitted_at)


def held(run: RunDir) -> list[Held]:
    """The run's jobs that have not ended, as the queue says; `SlurmError` when nobody can be asked."""
    _find_lost(run)
    jobs = submitted(run)
    if not jobs:
        return []
    wanted = ",".join(str(job.job_id) for job in jobs)
    try:
        rows = queue_rows(slurm(["squeue", "-h", "-a", "--states=all", "-o", QUEUE_FORMAT, "-j", wanted]))
    except Refused:
        return []
    return sort_out(jobs, rows)


def _find_lost(run: RunDir) -> None:
    """A submission whose answer was lost may have arrived: its job carries its token."""
    for token in run.tokens():
        known = read_request(run, token) is None or read_job(run, token) is not None
        if not known and (found := find_job(token)) is not None:
            record_job(run, token, found)


def sort_out(jobs: Iterable[Job], rows: Iterable[Row]) -> list[Held]:
    """Those of `jobs` that `rows` of the queue show as not ended."""
    leaders = {row.leader: row for row in rows if row.offset == 0 and row.state not in ENDED}
    return [
        Held(job=job, state=leaders[job.job_id].state, reason=leaders[job.job_id].reason)
        for job in jobs
        if job.job_id in leaders
    ]


def cancel_waiting(run: RunDir, which: Callable[[Job], bool] = lambda _: True) -> list[int]:
    """Cancel the run's jobs that only wait in the queue; returns their ids."""
    ids = [found.job.job_id for found in held(run) if found.waits and which(found.job)]
    if ids:
        slurm(["scancel", "--state=PENDING", *map(str, ids)])
    return ids


def missing_satellites(wanted: int, jobs: Iterable[Held]) -> list[int]:
    """Numbers of the rollout workers that no job in the queue is for."""
    there = {found.job.satellite for found in jobs}
    return [number for number in range(wanted) if number not in there]


def submit_missing_satellites(run: RunDir, recipe: Recipe) -> list[int]:
    """A job for every rollout node that has none; returns the new ones."""
    numbers = missing_satellites(recipe.cluster.rollout.nodes, held(run))
    return [submit(run, recipe, new_token(), satellite=number) for number in numbers]
