"""The next job of a run, queued ahead: which it is, when it goes on, when the chain is cut.

A token of a chain reads `<first>`, `<first>.1`, `<first>.2` …, so that a requeued job finds the successor that it has
queued already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attempt import read_resolved
from prorl_cli.spool.members import Outcome, StopOrder, current_attempt, read_claim, read_outcome, read_stop

LIMIT = "the time limit is near"
"""Reason of the stop order that a job gives itself."""

TOLD_TO_END = "the job was told to end"
"""Reason of the outcome when Slurm ends a job: cancelled, requeued, preempted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """An earlier attempt: the step at which it began, and whether nobody outside ended it."""

    step: int
    by_itself: bool


def successor(token: str, chain: int) -> str | None:
    """The token of the job behind `token`, when `chain` further jobs are allowed behind the first."""
    first, number = split(token)
    return f"{first}.{number + 1}" if number < chain else None


def split(token: str) -> tuple[str, int]:
    """A token's chain, and its place there."""
    first, _, number = token.partition(".")
    return first, int(number or 0)


def crash_loop(past: Sequence[Past], step: int) -> bool:
    """Whether the last two attempts ended by themselves without having trained a step."""
    last = past[-2:]
    return len(last) == 2 and all(attempt.by_itself and attempt.step == step for attempt in last)


def past_attempts(run: RunDir) -> list[Past]:
    """What the run directory says of the attempts so far."""
    return [
        Past(step=int(claim.get("step", -1)), by_itself=_by_itself(read_outcome(run, number), read_stop(run, number)))
        for number in run.attempts()
        if (claim := read_claim(run, number)) is not None
    ]


def _by_itself(outcome: Outcome | None, order: StopOrder | None) -> bool:
    """A failure, an end without a word, and the time limit are its own; a user's order and Slurm's are not."""
    if outcome is None or outcome.state != "stopped":
        return True
    return order is not None and order.reason == LIMIT


def over(run: RunDir, recipe: Recipe) -> Outcome | None:
    """The outcome of the newest attempt if a job that was queued ahead has nothing to go on with."""
    last = current_attempt(run)
    outcome = read_outcome(run, last)
    if outcome is None:
        return None
    if outcome.state == "done":
        return outcome if read_resolved(run, last) == recipe else None
    return outcome if outcome.state != "stopped" or stopped_by_user(run, last) else None


def stopped_by_user(run: RunDir, attempt: int) -> bool:
    """Whether the standing stop order of an attempt is not its job's own."""
    order = read_stop(run, attempt)
    return order is not None and order.reason != LIMIT
