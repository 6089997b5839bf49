"""What Slurm's commands print, as plain facts. Pure.

Only text with explicit columns is asked for (the JSON differs between releases), and never a column that a user fills
in, except as the last one. Called by `state`, `preflight` and `doctor`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from prorl_cli.slurm.grammar import parse_time

QUEUE_FORMAT = "%A|%i|%T|%r|%N|%S|%L|%P"
"""What `queue_rows` reads: own id, `leader+offset`, state, reason, nodes, start, time left, partition."""

ACCOUNTING_FORMAT = "JobIDRaw,JobID,State,ExitCode,Start,End,NodeList"
"""What `accounting_rows` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job, or one component of a heterogeneous one. Times are unix seconds; None where Slurm does not say."""

    job_id: int
    leader: int
    offset: int = 0
    state: str
    reason: str = ""
    nodes: str = ""
    partition: str = ""
    start: float | None = None
    end: float | None = None
    time_left_s: float | None = None
    exit_code: str = ""


def queue_rows(text: str) -> list[Row]:
    """Rows of `squeue -h -o QUEUE_FORMAT`; a line that is none is left out."""
    return [_queue_row(fields) for line in text.splitlines() if len(fields := line.split("|")) == 8]


def _queue_row(fields: list[str]) -> Row:
    own, display, state, reason, nodes, start, left, partition = fields
    leader, offset = _display_id(display)
    return Row(
        job_id=int(own), leader=leader, offset=offset, state=base_state(state), reason=_said(reason),
        nodes=_said(nodes), partition=partition, start=when(start), time_left_s=seconds(left),
    )  # fmt: skip


_RECORD = re.compile(
    r"JobId=(?P<job_id>\d+) (?:HetJobId=(?P<leader>\d+) HetJobOffset=(?P<offset>\d+) )?(?:Array\S+ )*JobName=.*? "
    r"UserId=[^ ()]+\(\d+\) GroupId=.*?\(\d+\) MCS_label=.*? "
    r"JobState=(?P<state>\S+) Reason=(?P<reason>.*?) (?:FailedNode=\S* )?Dependency=.*? ExitCode=(?P<exit_code>\S+) "
    r".*?StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) .*? Partition=(?P<partition>\S+) "
    r".*? NodeList=(?P<nodes>\S*)"
)  # a name may hold anything, `JobState=FAILED` too: only what follows the ids of user and group counts


def job_records(text: str) -> list[Row]:
    """Rows of `scontrol show job ID -o`."""
    return [_record(match) for line in text.splitlines() if (match := _RECORD.match(line))]


def _record(match: re.Match[str]) -> Row:
    job_id = int(match["job_id"])
    return Row(
        job_id=job_id, leader=int(match["leader"] or job_id), offset=int(match["offset"] or 0),
        state=base_state(match["state"]), reason=_said(match["reason"]), nodes=_said(match["nodes"]),
        partition=match["partition"], start=when(match["start"]), end=when(match["end"]), exit_code=match["exit_code"],
    )  # fmt: skip


def accounting_rows(text: str) -> list[Row]:
    """Rows of `sacct -X -n -P -o ACCOUNTING_FORMAT`."""
    return [_accounting_row(fields) for line in text.splitlines() if len(fields := line.split("|")) == 7]


def _accounting_row(fields: list[str]) -> Row:
    own, display, state, code, start, end, nodes = fields
    leader, offset = _display_id(display)
    return Row(
        job_id=int(own), leader=leader, offset=offset, state=base_state(state), exit_code=code,
        start=when(start), end=when(end), nodes=_said(nodes),
    )  # fmt: skip


def _display_id(text: str) -> tuple[int, int]:
    """`12+1` → (12, 1); `12` → (12, 0)."""
    leader, _, offset = text.partition("+")
    return int(re.match(r"\d+", leader)[0]), int(offset or 0)  # type: ignore[index]


def base_state(text: str) -> str:
    """`CANCELLED by 1000` and `CANCELLED+` → `CANCELLED`."""
    words = text.split()
    return words[0].rstrip("+").upper() if words else "UNKNOWN"


def _said(text: str) -> str:
    return "" if text in ("None", "(null)", "None assigned", "N/A") else text


def seconds(text: str) -> float | None:
    """A time that is left or allowed; None where there is no limit, or Slurm does not say."""
    found = parse_time(text)
    return None if found is None or math.isinf(found) else float(found)


def when(text: str) -> float | None:
    """`2026-11-30T15:47:23` of this machine's clock as unix seconds; None for `N/A`, `Unknown`."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None


def keyed_lines(text: str) -> Iterator[dict[str, str]]:
    """`Key=value Key=value` lines whose values hold no spaces, as of `scontrol show partition -o`."""
    for line in text.splitlines():
        if pairs := dict(part.split("=", 1) for part in line.split() if "=" in part):
            yield pairs


def settings(text: str) -> dict[str, str]:
    """`Key   = value` lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign and key.strip()}
