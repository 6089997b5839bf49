"""What a job is doing, from whoever still knows it: squeue, scontrol, sacct, the run's own record, nobody.

A job that is missing has not succeeded: it is unknown, and for how long is said. Called by whatever shows, waits for
or stops a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from prorl_cli.slurm.answers import (
    ACCOUNTING_FORMAT,
    QUEUE_FORMAT,
    Row,
    accounting_rows,
    job_records,
    queue_rows,
)
from prorl_cli.slurm.commands import Refused, SlurmError, slurm

UNKNOWN = "UNKNOWN"

ENDED = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
     "OUT_OF_MEMORY", "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED"]
)  # fmt: skip
"""States from which a job does not come back. COMPLETING is none of them: its nodes are still taken."""

LOOKS = 2
"""A controller that is just changing a job's state may miss it once."""

LOOK_AGAIN_S = 1.0

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job as a whole; `components` are the parts of a heterogeneous one (one row for a plain job).

    `start_estimate` is in unix seconds; `age_s` is how old the news is, None when nothing was ever heard; `source` is
    squeue, scontrol, sacct, record or nobody.
    """

    job_id: int
    state: str
    reason: str = ""
    nodes: str = ""
    time_left_s: float | None = None
    start_estimate: float | None = None
    exit_code: str = ""
    source: str
    age_s: float | None = 0.0
    components: tuple[Row, ...] = ()

    @property
    def over(self) -> bool:
        """Known to have ended."""
        return self.state in ENDED

    @property
    def known(self) -> bool:
        """Whether anybody said anything."""
        return self.state != UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the run directory itself says about a job's end (`state` is empty where it says nothing), and when anything
    was last heard of the job, in unix seconds."""

    state: str = ""
    reason: str = ""
    ended: float = 0.0
    heard: float | None = None


def job_state(
    job_id: int,
    recorded: Recorded | None = None,
    *,
    ask: Ask = slurm,
    sleep: Callable[[float], None] = time.sleep,
) -> JobState:
    """Climb down the ladder until somebody knows the job."""
    own = recorded or Recorded()
    try:
        for look in range(LOOKS):
            if look:
                sleep(LOOK_AGAIN_S)
            for source, rung in (("squeue", _queued), ("scontrol", _recorded_by_controller)):
                rows = rung(job_id, ask)
                if rows and source == "squeue" and rows[0].state in ENDED:
                    rows, source = _recorded_by_controller(job_id, ask) or rows, "scontrol"  # it knows the exit code
                if rows:
                    return summary(job_id, rows, source)
        trouble = "neither the queue nor the controller's memory holds it"
        accounted = [row for row in _accounted(job_id, ask) if row.state in ENDED]
    except SlurmError as error:
        trouble, accounted = str(error), []
    if accounted:
        return summary(job_id, accounted, "sacct")
    return _from_record(job_id, own, trouble)


def job_states(records: dict[int, Recorded], *, ask: Ask = slurm) -> dict[int, JobState]:
    """Many jobs with one question to the controller: whom the queue does not hold has only its own record."""
    trouble = "the queue does not hold it"
    try:
        rows = _queue(records, ask) if records else []
    except SlurmError as error:
        rows, trouble = [], str(error)
    return {job_id: _one_of_many(job_id, own, rows, trouble) for job_id, own in records.items()}


def _one_of_many(job_id: int, own: Recorded, rows: list[Row], trouble: str) -> JobState:
    found = [row for row in rows if job_id in (row.job_id, row.leader)]
    return summary(job_id, found, "squeue") if found else _from_record(job_id, own, trouble)


def summary(job_id: int, rows: Iterable[Row], source: str) -> JobState:
    """One state for a job from its components: the leader's, and what is different elsewhere in `reason`."""
    parts = tuple(sorted(rows, key=lambda row: row.offset))
    leader = parts[0]
    starts = [row.start for row in parts if row.state == "PENDING"]
    left = [row.time_left_s for row in parts if row.state == "RUNNING" and row.time_left_s is not None]
    return JobState(
        job_id=job_id, state=leader.state, reason=_reason(parts), source=source, components=parts,
        nodes=",".join(dict.fromkeys(row.nodes for row in parts if row.nodes)), exit_code=leader.exit_code,
        time_left_s=min(left, default=None),
        start_estimate=max((start for start in starts if start), default=None) if all(starts) else None,
    )  # fmt: skip


def _reason(parts: tuple[Row, ...]) -> str:
    leader = parts[0]
    told = next((row.reason for row in parts if row.state == leader.state and row.reason), "")
    others = [f"component {row.offset} is {row.state}" for row in parts if row.state != leader.state]
    return "; ".join([*([told] if told else []), *others])


def _queue(job_ids: Iterable[int], ask: Ask) -> list[Row]:
    wanted = ",".join(map(str, job_ids))
    try:
        return queue_rows(ask(["squeue", "-h", "-a", "--states=all", "-o", QUEUE_FORMAT, "-j", wanted]))
    except Refused:
        return []  # one id, and the queue does not hold it


def _queued(job_id: int, ask: Ask) -> list[Row]:
    return _queue([job_id], ask)


def _recorded_by_controller(job_id: int, ask: Ask) -> list[Row]:
    try:
        return job_records(ask(["scontrol", "show", "job", str(job_id), "-o"]))
    except Refused:
        return []


def _accounted(job_id: int, ask: Ask) -> list[Row]:
    try:
        return accounting_rows(ask(["sacct", "-X", "-n", "-P", "-j", str(job_id), "-o", ACCOUNTING_FORMAT]))
    except SlurmError:
        return []  # many clusters keep no accounts


def _from_record(job_id: int, own: Recorded, trouble: str) -> JobState:
    now = time.time()
    if own.state:
        return JobState(
            job_id=job_id, state=own.state, reason=own.reason, source="record", age_s=max(0.0, now - own.ended)
        )
    heard = None if own.heard is None else max(0.0, now - own.heard)
    return JobState(job_id=job_id, state=UNKNOWN, reason=trouble, source="nobody", age_s=heard)


def with_estimate(state: JobState, *, ask: Ask = slurm) -> JobState:
    """The same with the backfill scheduler's estimate of the start, where it has one."""
    if state.state != "PENDING" or state.start_estimate is not None:
        return state
    try:
        rows = queue_rows(ask(["squeue", "-h", "--start", "-o", QUEUE_FORMAT, "-j", str(state.job_id)]))
    except SlurmError:
        return state
    starts = [row.start for row in rows]
    known = max((start for start in starts if start), default=None) if rows and all(starts) else None
    return replace(state, start_estimate=known)
