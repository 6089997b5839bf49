"""The queue of train groups: admission within the staleness bound, settlement in admission order, the manifest.

A pure state machine, rebuilt from the last manifest and the logs. It never looks at who is alive: the machine tells
it what happened to members. Groups below `head` are settled; `ready` ones wait for the next position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prorl_cli.algorithm import schedule
from prorl_cli.coordinator.groups import Group, Member, Send, Verdict, judge
from prorl_cli.coordinator.sampler import Sampler
from prorl_cli.recipe import Recipe
from prorl_cli.spool.trajectories import Entry
from prorl_cli.trajectory import Dropped, GroupRequest, Purpose, StepKind, StepManifest

SURPLUS = "surplus"
"""A finished record of a member that was settled, finished or given up before it came."""


class Batcher:
    """`position` is the last published one; the next manifest is `position + 1`."""

    def __init__(self, recipe: Recipe, last: StepManifest | None) -> None:
        self._recipe = recipe
        self._sampler = Sampler(recipe.tasks, recipe.seed)
        self.position = last.position if last else 0
        self.head = self.next = last.frontier if last else 0
        state = last.policy_state if last else {}
        self.restored: int = state.get("restored", 0)
        self.restored_by: int = state.get("restored_by", 0)
        self._counted: dict[str, int] = dict(state.get("seen", {}))
        self.seen: dict[str, int] = {}
        self.groups: dict[int, Group] = {}
        self.ready: list[Verdict] = []
        self.settled: list[Verdict] = []
        self._fresh = 0
        self._dropped: list[Dropped] = []
        self._lost = Counter[str]()
        self._lost_before = Counter[str](state.get("lost", {}))
        self._early: dict[int, list[Entry]] = {}

    # ── admission ─────────────────────────────────────────────────────────────────────────────────────────

    def admissible(self, weights: int) -> bool:
        """Whether one more group may be admitted with `weights` as the newest version.

        Groups that are spent make room for others, but behind a straggler only for as many as steps may settle.
        """
        lead = min(weights, self.position) - self.position + 1
        ahead = min(lead + self._recipe.rollout.max_staleness, self.steps_left)
        return (
            self.counted < ahead * self._recipe.rollout.groups_per_step
            and len(self.groups) < ahead * self._cap
            and self.next_min_version <= weights
        )

    def admit(self, clock: float) -> Group:
        """The next group of the run; records of it that came before are taken at once."""
        group = self._open(clock)
        for entry in self._early.pop(group.number, []):
            self._take_into(group, entry, clock)
        return group

    @property
    def next_min_version(self) -> int:
        """The oldest version that may author tokens of the group admitted next."""
        return self._min_version(self.counted, self._fresh + len(self.groups))

    @property
    def counted(self) -> int:
        """Groups admitted and not consumed that may still be trained on."""
        return len(self.ready) + sum(not group.spent for group in self.groups.values())

    @property
    def steps_left(self) -> int:
        return max(0, self._recipe.learner.steps - self.position)

    def _min_version(self, ordinal: int, place: int) -> int:
        """Of the group that has `place` groups of this position ahead of it, `ordinal` of which may be trained on.

        A step takes `groups_per_step` of the latter, or fewer once it has settled the resampling cap of the former: so
        many steps may pass at most before the group's own.
        """
        rollout = self._recipe.rollout
        full = ordinal // rollout.groups_per_step
        short = max(0, place - full * rollout.groups_per_step) // self._cap
        return max(0, self.restored, self.position + full + short - rollout.max_staleness)

    def waiting(self) -> Iterator[tuple[Group, int]]:
        """Groups that may still be trained on, in admission order, with their minimum versions."""
        ordinal = len(self.ready)
        for place, group in enumerate(self.groups.values(), self._fresh):
            if not group.spent:
                yield group, self._min_version(ordinal, place)
                ordinal += 1

    def _open(self, clock: float) -> Group:
        rollout = self._recipe.rollout
        group = Group(
            number=self.next, purpose=Purpose.TRAIN, draw=self._sampler.draw(self.next),
            members=[Member() for _ in range(rollout.group_size)], retries=rollout.retries,
            deadline=clock + rollout.deadline,
        )  # fmt: skip
        self.groups[self.next] = group
        self.next += 1
        return group

    # ── what happened ─────────────────────────────────────────────────────────────────────────────────────

    def asked(self, worker: str, request: GroupRequest, clock: float, fresh: bool) -> None:
        """A request found in a log: its group is admitted, and every group before it."""
        if request.group < self.head:
            return
        while self.next <= request.group:
            self._open(clock)
        group = self.groups[request.group]
        group.asked(worker, request)
        group.fresh |= fresh

    def saw(self, entry: Entry) -> None:
        """Any index entry, whatever its purpose: manifests say how far each log was read."""
        self.seen[entry.writer] = max(self.seen.get(entry.writer, 0), entry.seq + 1)

    def take(self, entry: Entry, clock: float) -> None:
        """An index entry of a train record, in its log's order."""
        if entry.group >= self.next:
            self._early.setdefault(entry.group, []).append(entry)
        elif group := self.groups.get(entry.group):
            self._take_into(group, entry, clock)
        elif entry.group < self.head and entry.seq >= self._counted.get(entry.writer, 0):
            self._surplus(entry)

    def _take_into(self, group: Group, entry: Entry, clock: float) -> None:
        if not group.take(entry, clock):
            self._surplus(entry)

    def _surplus(self, entry: Entry) -> None:
        if entry.error_class is None:
            self._dropped.append(Dropped(group=entry.group, reason=SURPLUS, members=(entry.member,)))
            self._lost[SURPLUS] += 1

    # ── settlement ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def full(self) -> bool:
        """Nothing more is settled for the next position: enough is ready, or the resampling cap is reached."""
        return len(self.ready) >= self._recipe.rollout.groups_per_step or self._fresh >= self._cap

    @property
    def _cap(self) -> int:
        rollout = self._recipe.rollout
        return math.ceil(rollout.max_resample * rollout.groups_per_step)

    def settle(self) -> None:
        """Settle groups from the head for the next position, in admission order, until one is not resolved."""
        while not self.full and (group := self.groups.get(self.head)) and group.resolved:
            del self.groups[self.head]
            self.head += 1
            self._fresh += group.fresh
            verdict = judge(group, max(self.restored, self.position - self._recipe.rollout.max_staleness))
            self.settled.append(verdict)
            if verdict.kept:
                self.ready.append(verdict)
            self._dropped += verdict.dropped
            self._lost += verdict.lost

    def abandon(self) -> list[Send]:
        """Withdraw every group that no step will need; they are not settled."""
        sends = [send for group in self.groups.values() for send in group.withdraw("the run needs no more groups")]
        self.groups.clear()
        return sends

    @property
    def lost(self) -> Counter[str]:
        """Members of the whole run that were not trained on, by reason."""
        return self._lost_before + self._lost

    # ── publication ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def staleness(self) -> int:
        """Versions that the oldest token of the next step lags behind the weights it is trained on."""
        oldest = [entry.oldest for verdict in self.ready for entry in verdict.kept if entry.oldest >= 0]
        return self.position - min(oldest, default=self.position)

    def account(self) -> dict[str, Any]:
        """Figures of the next step, for metrics: groups, records, lost members by reason, staleness, settled, and the
        mean reward of all that was settled for it, whether it can be trained on or not."""
        rewards = [reward for verdict in self.settled for reward in verdict.rewards]
        return {
            "groups": len(self.ready), "records": sum(len(verdict.kept) for verdict in self.ready),
            "dropped": dict(self._lost), "staleness": self.staleness, "settled": len(self.settled),
            "reward": sum(rewards) / len(rewards) if rewards else 0.0,
        }  # fmt: skip

    def compose(self, name: str) -> StepManifest:
        """The next step: every ready group, and every number of it from the recipe."""
        learner = self._recipe.learner
        groups = tuple(tuple(entry.ref for entry in verdict.kept) for verdict in self.ready)
        return StepManifest(
            position=self.position + 1, kind=StepKind.STEP, groups=groups, dropped=tuple(self._dropped),
            frontier=self.head, offsets=self._offsets(),
            learning_rate=schedule(self._recipe, self.position + 1), kl_beta=learner.kl_beta,
            clip_low=learner.clip_low, clip_high=learner.clip_high, is_cap=learner.is_cap, updates=learner.updates,
            policy_state=self._state(), published_by=name,
        )  # fmt: skip

    def compose_restore(self, to: int, attempt: int, name: str) -> StepManifest:
        """Go back to checkpoint `to`: from its position on, nothing that older weights authored is trained on."""
        state = self._state() | {"restored": self.position + 1, "restored_by": attempt}
        return StepManifest(
            position=self.position + 1, kind=StepKind.RESTORE, dropped=tuple(self._dropped), frontier=self.head,
            offsets=self._offsets(), restore_to=to, policy_state=state, published_by=name,
        )  # fmt: skip

    def published(self, manifest: StepManifest) -> None:
        """The manifest composed last is position `position + 1` of the step log."""
        self.position = manifest.position
        self.restored = manifest.policy_state["restored"]
        self.restored_by = manifest.policy_state["restored_by"]
        self._counted = dict(manifest.policy_state["seen"])
        self.ready, self.settled, self._dropped, self._fresh = [], [], [], 0
        self._lost, self._lost_before = Counter(), self.lost

    def _state(self) -> dict[str, Any]:
        return {
            "seen": dict(self.seen), "lost": dict(self.lost),
            "restored": self.restored, "restored_by": self.restored_by,
        }  # fmt: skip

    def _offsets(self) -> dict[str, int]:
        """Per log the records before the first one of a group that is not settled."""
        offsets: dict[str, int] = dict(self.seen)
        for first in self._firsts():
            for writer, seq in first.items():
                offsets[writer] = min(offsets[writer], seq)
        return offsets

    def _firsts(self) -> Iterator[Mapping[str, int]]:
        yield from (group.first for group in self.groups.values())
        yield from ({entry.writer: entry.seq} for entries in self._early.values() for entry in entries)
