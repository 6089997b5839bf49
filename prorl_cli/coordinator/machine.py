"""Everything the coordinator decides, as one pure state machine: facts in, a decision out, no I/O and no clock.

Built from what the files hold and from nothing else, so that a restart, a lost race for a position and a first start
are the same thing. The process around it must carry out a decision whole before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from prorl_cli.coordinator.batcher import Batcher
from prorl_cli.coordinator.evaluation import Evaluator, due
from prorl_cli.coordinator.groups import LATE, Group, Send
from prorl_cli.coordinator.words import starved, waiting_for
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import Incarnation
from prorl_cli.spool.evals import Evaluation
from prorl_cli.spool.members import Outcome
from prorl_cli.spool.trajectories import Entry
from prorl_cli.trajectory import Cancel, GroupRequest, Purpose, Request, StepManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the files hold when a machine is built. `restore_to` is the checkpoint that this attempt was told to go
    back to, or -1; `evaluated` are the versions with a published evaluation."""

    name: str
    attempt: int
    last: StepManifest | None
    requests: Iterable[tuple[str, Request]]
    entries: Iterable[Entry]
    evaluated: frozenset[int]
    restore_to: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is so at monotonic `now` (seconds): newest weights, workers that take work, and those of the asked ones
    that died."""

    now: float
    weights: int
    alive: frozenset[str]
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, in this order: append `sends`, publish, end. `waiting` names what is waited for otherwise."""

    sends: tuple[Send, ...] = ()
    step: StepManifest | None = None
    evaluation: Evaluation | None = None
    outcome: Outcome | None = None
    waiting: str = ""

    @property
    def publishes(self) -> bool:
        return any((self.step, self.evaluation, self.outcome))


class Machine:
    """The decisions of one coordinator, from the state that `origin` describes."""

    def __init__(self, recipe: Recipe, origin: Origin) -> None:
        self._recipe = recipe
        self._name = origin.name
        self._attempt = origin.attempt
        self.batcher = Batcher(recipe, origin.last)
        self._evaluated = set(origin.evaluated)
        self.evaluator = self._next_evaluator()
        self._restore_to = origin.restore_to if self.batcher.restored_by != origin.attempt else -1
        self._clock = 0.0
        self._last: float | None = None
        self._ready_at: float | None = None
        self.wait_s = 0.0
        self._load(origin)

    def _load(self, origin: Origin) -> None:
        cancels: list[Cancel] = []
        for worker, request in origin.requests:
            if isinstance(request, GroupRequest):
                self._asked(worker, request)
            elif isinstance(request, Cancel):
                cancels.append(request)
        for entry in origin.entries:
            self.take(entry)
        for cancel in cancels:
            if group := self._group(cancel.purpose, cancel.group):
                group.withdrawn(cancel)

    def _asked(self, worker: str, request: GroupRequest) -> None:
        if request.purpose == Purpose.TRAIN:
            fresh = Incarnation.parse(worker).attempt == self._attempt
            self.batcher.asked(worker, request, self._clock, fresh)
        elif self.evaluator is not None:
            self.evaluator.asked(worker, request, self._clock)

    def _group(self, purpose: Purpose, number: int) -> Group | None:
        if purpose == Purpose.TRAIN:
            return self.batcher.groups.get(number)
        return self.evaluator.groups.get(number) if self.evaluator else None

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, entry: Entry) -> None:
        """A new index entry."""
        self.batcher.saw(entry)
        if entry.purpose == Purpose.TRAIN:
            self.batcher.take(entry, self._clock)
        elif self.evaluator is not None:
            self.evaluator.take(entry, self._clock)

    def load(self) -> dict[str, int]:
        """Members that each asked worker has not finished."""
        held: dict[str, int] = {}
        for group in self._groups():
            for member in group.members:
                if member.worker:
                    held[member.worker] = held.get(member.worker, 0) + 1
        return held

    @property
    def span(self) -> tuple[int, int]:
        """The first group that is not settled, and the first that is not admitted."""
        return self.batcher.head, self.batcher.next

    def published(self, manifest: StepManifest) -> None:
        """The step of the last decision stands in the step log."""
        self.batcher.published(manifest)
        self._restore_to = -1
        self._ready_at = None
        self.evaluator = self._next_evaluator()

    def evaluated(self) -> None:
        """The evaluation of the last decision is published."""
        self._evaluated.add(self.batcher.position)
        self.evaluator = None

    # ── decisions ─────────────────────────────────────────────────────────────────────────────────────────

    def decide(self, facts: Facts) -> Decision:
        """The next thing to do."""
        self._observe(facts)
        if self._restore_to >= 0:
            return self._restore(facts)
        sends = self._expire()
        if not self.batcher.steps_left:
            sends += self.batcher.abandon()
        self.batcher.settle()
        if (publication := self._publication(facts)) is not None:
            return replace(publication, sends=tuple(sends))
        sends += self._hand_out(facts)
        return Decision(
            sends=tuple(sends), waiting=waiting_for(self.batcher, self.evaluator, facts.weights, facts.alive)
        )

    def draining(self, facts: Facts) -> str:
        """What a drain still waits for; empty when it is over. Nothing is admitted, given out or published."""
        self._observe(facts)
        if running := sum(self.load().values()):
            return f"drain: {running} members to finish"
        if facts.weights < self.batcher.position:
            return f"drain: weights {self.batcher.position}"
        return ""

    def _observe(self, facts: Facts) -> None:
        """The machine's clock stands still while no worker lives: deadlines are for stragglers, not for outages."""
        if self._last is not None and facts.alive:
            self._clock += facts.now - self._last
        self._last = facts.now
        if facts.gone:
            for group in self._groups():
                group.bury(facts.gone)
        if self._ready_at is None and facts.weights >= self.batcher.position:
            self._ready_at = facts.now
        self.wait_s = facts.now - self._ready_at if self._ready_at is not None else 0.0

    def _restore(self, facts: Facts) -> Decision:
        if facts.weights < self.batcher.position:
            return Decision(waiting=f"weights {self.batcher.position}")
        return Decision(step=self.batcher.compose_restore(self._restore_to, self._attempt, self._name))

    def _expire(self) -> list[Send]:
        late = [g for g in self._groups() if g.deadline is not None and g.deadline <= self._clock and not g.resolved]
        return [send for group in late for send in group.withdraw(LATE)]

    def _publication(self, facts: Facts) -> Decision | None:
        """What the newest weights, the finished evaluation or the settled groups allow to be published."""
        position = self.batcher.position
        if facts.weights < position:
            return None
        if self.evaluator is not None:
            return Decision(evaluation=self.evaluator.summary()) if self.evaluator.done else None
        if not self.batcher.steps_left:
            reason = f"all {self._recipe.learner.steps} steps are done"
            return Decision(outcome=Outcome(state="done", reason=reason, step=position))
        if not self.batcher.full:
            return None
        if not self.batcher.ready:
            reason = starved(position + 1, self.batcher.settled)
            return Decision(outcome=Outcome(state="starved", reason=reason, step=position))
        return Decision(step=self.batcher.compose(self._name))

    def _hand_out(self, facts: Facts) -> list[Send]:
        """Work for free slots: the evaluation first, then members without a worker, then new groups."""
        held, slots = self.load(), self._recipe.rollout.run.slots
        free = {worker: slots - held.get(worker, 0) for worker in facts.alive}
        sends: list[Send] = []
        if self.evaluator is not None and facts.weights >= self.evaluator.version:
            sends += self.evaluator.hand_out(free, self._clock)
        for group, min_version in self.batcher.waiting():
            if min_version <= facts.weights:
                sends += group.hand_out(free, min_version, self._clock)
        while any(count > 0 for count in free.values()) and self.batcher.admissible(facts.weights):
            min_version = self.batcher.next_min_version
            sends += self.batcher.admit(self._clock).hand_out(free, min_version, self._clock)
        return sends

    def _groups(self) -> list[Group]:
        evals = self.evaluator.groups.values() if self.evaluator else ()
        return [*self.batcher.groups.values(), *evals]

    def _next_evaluator(self) -> Evaluator | None:
        position = self.batcher.position
        if position in self._evaluated or not due(self._recipe, position):
            return None
        return Evaluator(self._recipe, position)
