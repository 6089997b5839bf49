"""Who belongs to a run: attempts and their fencing, endpoints, obituaries, stop orders, outcomes.

An attempt number is claimed exclusively, and a process of an older attempt must publish nothing more. Refuses to judge
who is alive beyond what is written (`fsio.DeathJudge` does that). Called by `launch`, `resume`, `stop` and every role.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord, Fenced
from prorl_cli.rundir import Incarnation, RunDir
from prorl_cli.spool import sealed
from prorl_cli.trajectory import Record

BEAT_S = 2.0
"""Between two announcements of a process: one small file each, cheap on any filesystem."""

SLOT = "PRORL_SLOT"
"""Environment variable by which a supervisor tells a process its name in the plan."""

DEVICES = "PRORL_DEVICES"
"""Environment variable that tells a process which of the GPUs of its node are its own, by position."""


class Claim(Record):
    """Who took an attempt number."""

    about: dict[str, Any]


class Endpoint(Record):
    """One process of a run, as it announces itself every few seconds.

    `beat` counts announcements; `pid_started` is the process's start time in unix seconds; `waiting` names what it has
    waited for since `waiting_s` seconds; `version` and `step` are -1 where they mean nothing. `slot` is the plan's name
    of the process (`engine-0`), the same for the one that replaces it.
    """

    incarnation: str
    role: str
    node: str
    attempt: int
    pid: int
    pid_started: float
    slot: str = ""
    url: str = ""
    beat: int = 0
    state: str = ""
    waiting: str = ""
    waiting_s: float = 0.0
    version: int = -1
    step: int = -1
    facts: dict[str, float | int | str] = msgspec.field(default_factory=dict)


class Obituary(Record):
    """How a process ended, written by whoever saw it: exit `code` (negative: the signal) and `reason`."""

    incarnation: str
    code: int
    reason: str
    step: int = -1


class StopOrder(Record):
    """`drain`: finish what runs within `deadline_s` seconds; `now`: end at once. `reason` says who wants it, when it is
    not the user."""

    mode: Literal["drain", "now"]
    deadline_s: float
    reason: str = ""


class RestoreOrder(Record):
    """Go back to the checkpoint of step `to` before anything else."""

    to: int


class Outcome(Record):
    """How an attempt ended, at which step, and why."""

    state: Literal["done", "failed", "stopped", "starved"]
    reason: str
    step: int


def claim_attempt(run: RunDir, about: dict[str, Any], *, after: int | None = None) -> int:
    """Claim the attempt number behind `after` (the attempt that the caller saw to be over; else the newest); `Fenced`
    when another launch was quicker."""
    number = (current_attempt(run) if after is None else after) + 1
    fsio.make_folder(run.job(number))
    if not fsio.publish_exclusive(run.claim(number), sealed.seal(Claim(about=about))):
        raise Fenced(f"{run.root}: another launch has just claimed attempt {number}: see `prorl status {run.root}`")
    return number


def read_claim(run: RunDir, attempt: int) -> dict[str, Any] | None:
    """What the launch that took `attempt` said about itself; None when nobody took it."""
    claim = sealed.load(run.claim(attempt), Claim)
    return None if claim is None else claim.about


def current_attempt(run: RunDir) -> int:
    """The newest claimed attempt; 0 before the first."""
    numbers = sorted((int(name) for name in fsio.names(run.jobs) if name.isdigit()), reverse=True)
    return next((number for number in numbers if run.claim(number).name in fsio.names(run.job(number))), 0)


def ensure_current(run: RunDir, attempt: int) -> None:
    """`Fenced` when a newer attempt than `attempt` exists; asked before every publish."""
    newest = current_attempt(run)
    if newest > attempt:
        raise Fenced(f"attempt {attempt} of {run.root} has been superseded by attempt {newest}")


def write_endpoint(run: RunDir, endpoint: Endpoint) -> None:
    """Announce a process; replaces its previous announcement."""
    fsio.write_turn(run.endpoint(endpoint.incarnation), sealed.seal(endpoint), endpoint.beat)


def read_endpoints(run: RunDir, attempt: int | None = None) -> list[Endpoint]:
    """All readable announcements, or those of one attempt; a damaged one is left out."""
    stems = [name[:-5] for name in fsio.names(run.endpoints) if name.endswith(".json")]
    wanted = [stem for stem in stems if attempt is None or attempt_of(stem) in (attempt, None)]
    return [found for stem in wanted if (found := _readable(run, stem)) is not None]


def write_obituary(run: RunDir, obituary: Obituary) -> None:
    """Record how a process ended; the first witness stands."""
    sealed.publish_first(run.obituary(obituary.incarnation), obituary)


def read_obituaries(run: RunDir) -> dict[str, Obituary]:
    """Obituaries by incarnation; a damaged one says so and still names the dead."""
    stems = [name[:-5] for name in fsio.names(run.endpoints) if name.endswith(".exit")]
    return {stem: found for stem in stems if (found := _obituary(run, stem)) is not None}


def attempt_of(incarnation: str) -> int | None:
    """The attempt of an incarnation; None for a name that is none."""
    try:
        return Incarnation.parse(incarnation).attempt
    except ValueError:
        return None


def live(endpoints: list[Endpoint], obituaries: dict[str, Obituary], attempt: int) -> list[Endpoint]:
    """Those of `attempt` that have neither an obituary nor announced their end."""
    return [e for e in endpoints if e.attempt == attempt and e.incarnation not in obituaries and e.state != "ended"]


def order_stop(run: RunDir, attempt: int, order: StopOrder) -> None:
    """Ask an attempt to stop; a later order replaces an earlier one."""
    fsio.publish(run.stop(attempt), sealed.seal(order))


def read_stop(run: RunDir, attempt: int) -> StopOrder | None:
    """The standing stop order of an attempt."""
    return sealed.load(run.stop(attempt), StopOrder)


def order_restore(run: RunDir, attempt: int, to: int) -> None:
    """Ask an attempt to begin by going back to the checkpoint of step `to`."""
    fsio.publish(run.restore(attempt), sealed.seal(RestoreOrder(to=to)))


def read_restore(run: RunDir, attempt: int) -> int | None:
    """The step that an attempt was told to go back to; None when it was not."""
    order = sealed.load(run.restore(attempt), RestoreOrder)
    return None if order is None else order.to


def publish_outcome(run: RunDir, attempt: int, outcome: Outcome) -> Outcome:
    """Say how an attempt ended; the first outcome stands and is returned."""
    return sealed.publish_first(run.exit(attempt), outcome)


def read_outcome(run: RunDir, attempt: int) -> Outcome | None:
    """How an attempt ended; None while it runs."""
    return sealed.load(run.exit(attempt), Outcome)


def _readable(run: RunDir, incarnation: str) -> Endpoint | None:
    """The newer of the announcements that are whole."""
    path = run.endpoint(incarnation)
    found = []
    for line in fsio.read_turns(path) or ():
        with suppress(CorruptRecord):
            found.append(sealed.unseal(path, line, Endpoint))
    return max(found, key=lambda endpoint: endpoint.beat, default=None)


def _obituary(run: RunDir, incarnation: str) -> Obituary | None:
    try:
        return sealed.load(run.obituary(incarnation), Obituary)
    except CorruptRecord as error:
        return Obituary(incarnation=incarnation, code=1, reason=f"unreadable: {error}")
