"""One group on its way: who has which member, what came back, what is given up, and the verdict when all is in.

Pure: fed requests and index entries in any order, it reaches the same state, so a restart only has to feed it again.
Time is the machine's own clock in seconds, which stands still while no worker lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field

from prorl_cli.algorithm import informative
from prorl_cli.coordinator.placement import place
from prorl_cli.coordinator.sampler import Draw
from prorl_cli.spool.trajectories import Entry
from prorl_cli.trajectory import Cancel, Dropped, ErrorClass, GroupRequest, Purpose, Request

LATE = "late"
STALE = "stale"
ZERO_VARIANCE = "zero_variance"

MOVES = 16
"""Tries a member may lose to dying workers. Generous, because a death is seldom the member's doing, but finite,
because a member that kills every worker must not go round for ever."""

RETRY_PAUSE_S = 1.0
"""Before the first retry of a failed member, doubled for each further one: an engine that restarts takes seconds."""

NOT_ITS_FAULT = frozenset({ErrorClass.CANCELLED, ErrorClass.WORKER})
"""Classes that count as moves, not against the retries."""

Send = tuple[str, Request]
"""A worker's name and what is appended to its request log."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One trajectory-to-be. `worker` is who has try `tried`; empty: it must be given out (or is over)."""

    tried: int = -1
    worker: str = ""
    not_before: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)
    finished: Entry | None = None
    dropped: str = ""

    @property
    def over(self) -> bool:
        return self.finished is not None or bool(self.dropped)

    def fail(self, tried: int, error_class: str, clock: float, retries: int) -> None:
        """Try `tried` ended in an error; an older try than the current one changes only the count."""
        self.failed[tried] = error_class
        if tried >= self.tried:
            self.tried = tried
            self.not_before = clock + RETRY_PAUSE_S * 2 ** min(len(self.failed) - 1, 5)
            self.release(retries)

    def release(self, retries: int) -> None:
        """Nobody has it any more: to be given out again, or dropped when its tries are spent."""
        self.worker = ""
        errors = [name for _, name in sorted(self.failed.items()) if name not in NOT_ITS_FAULT]
        if self.over:
            return
        if len(errors) > retries:
            self.dropped = f"error:{errors[-1]}"
        elif self.tried + 1 - len(errors) > MOVES:
            self.dropped = f"error:{ErrorClass.WORKER}"


@dataclass(slots=True, kw_only=True)
class Group:
    """Members that share a task. `first` is per trajectory log the earliest record that belongs to the group.

    `fresh`: a worker of the current attempt was asked for it. `spent`: all is in, and nothing of it can be trained on.
    """

    number: int
    purpose: Purpose
    draw: Draw
    members: list[Member]
    retries: int
    deadline: float | None = None
    first: dict[str, int] = field(default_factory=dict)
    fresh: bool = False
    spent: bool = False

    @property
    def resolved(self) -> bool:
        """Whether every member has finished or is given up."""
        return all(member.over for member in self.members)

    def asked(self, worker: str, request: GroupRequest) -> None:
        """A request found in a log: whoever was asked for the highest try has the member."""
        for number, tried in zip(request.members, request.tries, strict=True):
            if number < len(self.members) and tried >= self.members[number].tried:
                self.members[number].tried, self.members[number].worker = tried, worker

    def take(self, entry: Entry, clock: float) -> bool:
        """A record of this group; False when it is surplus: its member is over, or unknown to this recipe."""
        if entry.member >= len(self.members):
            return False
        member = self.members[entry.member]
        self.first.setdefault(entry.writer, entry.seq)
        if entry.error_class is not None:
            member.fail(entry.tried, entry.error_class, clock, self.retries)
        elif member.over:
            return False
        else:
            member.finished, member.worker = entry, ""
        self._review()
        return True

    def bury(self, gone: Container[str]) -> None:
        """Take back what workers that died had not finished."""
        for member in self.members:
            if member.worker and member.worker in gone:
                member.release(self.retries)
        self._review()

    def withdraw(self, reason: str) -> list[Send]:
        """Drop the members that are missing; the cancellations for those who have them."""
        held: dict[str, list[int]] = {}
        for number, member in enumerate(self.members):
            if not member.over:
                if member.worker:
                    held.setdefault(member.worker, []).append(number)
                member.dropped, member.worker = reason, ""
        self._review()
        return [(worker, self._cancel(tuple(numbers), reason)) for worker, numbers in held.items()]

    def withdrawn(self, cancel: Cancel) -> None:
        """A cancellation for lateness found in a log: the verdict outlives a restart, so that a straggler does not."""
        for number in cancel.members:
            if cancel.reason == LATE and number < len(self.members) and not self.members[number].over:
                self.members[number].dropped, self.members[number].worker = LATE, ""
        self._review()

    def idle(self, clock: float) -> tuple[int, ...]:
        """Members to be given out now."""
        return tuple(
            number
            for number, member in enumerate(self.members)
            if not member.over and not member.worker and member.not_before <= clock
        )

    def hand_out(self, free: dict[str, int], min_version: int, clock: float) -> list[Send]:
        """Give idle members to the workers with `free` slots, which are used up."""
        return [(worker, self._issue(worker, some, min_version)) for worker, some in place(self.idle(clock), free)]

    def _issue(self, worker: str, numbers: tuple[int, ...], min_version: int) -> GroupRequest:
        """Give members to a worker, each as its next try."""
        self.fresh = True
        for number in numbers:
            self.members[number].tried += 1
            self.members[number].worker = worker
        return GroupRequest(
            group=self.number, purpose=self.purpose, task=self.draw.task, members=numbers,
            tries=tuple(self.members[number].tried for number in numbers), min_version=min_version,
            seed=self.draw.seed,
        )  # fmt: skip

    def _cancel(self, numbers: tuple[int, ...], reason: str) -> Cancel:
        return Cancel(group=self.number, purpose=self.purpose, members=numbers, reason=reason)

    def _review(self) -> None:
        self.spent = self.purpose == Purpose.TRAIN and self.resolved and not judge(self, oldest=0).kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a resolved group comes to. `kept` is empty when it leaves the queue untrained; `lost` counts its members
    by the reason for which they are not trained on."""

    group: int
    domain: str
    kept: tuple[Entry, ...]
    dropped: tuple[Dropped, ...]
    lost: Counter[str]
    reason: str
    rewards: tuple[float, ...]


def judge(group: Group, oldest: int) -> Verdict:
    """Settle a resolved group for a step whose tokens may come from versions `oldest` and newer only.

    At least two finished members whose rewards are not all equal are kept. The whole group is dropped as `late`,
    `stale`, `error:<class>` (too few are left) or `zero_variance`.
    """
    reasons = {number: _reason(member, oldest) for number, member in enumerate(group.members)}
    kept = tuple(m.finished for n, m in enumerate(group.members) if m.finished is not None and not reasons[n])
    rewards = tuple(entry.reward for entry in kept)
    why = _whole(list(reasons.values()), rewards)
    named = sorted(set(reasons.values()) - {"", why})
    dropped = [Dropped(group=group.number, reason=why)] if why else []
    for reason in named:
        members = tuple(number for number, found in reasons.items() if found == reason)
        dropped.append(Dropped(group=group.number, reason=reason, members=members))
    lost = Counter(found or why for found in reasons.values() if found or why)
    return Verdict(
        group=group.number, domain=group.draw.task.domain, kept=() if why else kept, dropped=tuple(dropped), lost=lost,
        reason=why, rewards=rewards,
    )  # fmt: skip


def _reason(member: Member, oldest: int) -> str:
    if member.finished is not None:
        # -1: the policy authored nothing, so no token of it can be stale
        return STALE if -1 < member.finished.oldest < oldest else ""
    return member.dropped


def _whole(reasons: list[str], rewards: tuple[float, ...]) -> str:
    if len(rewards) >= 2:
        return "" if informative(rewards) else ZERO_VARIANCE
    return min(set(reasons) - {""}, key=lambda reason: (reason not in (LATE, STALE), reason))
