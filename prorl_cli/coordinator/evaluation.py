"""Pass@1 of one weight version on the held-out items: who still has to answer, and the sum of it.

Pure, like the queue of train groups. Item `i` is group `version * 1_000_000 + i` with one member; a failed item is
retried, then left out of the mean and counted: failure is never a reward.
"""

from __future__ import annotations

from prorl_cli.algorithm import pass_at_1
from prorl_cli.algorithm.groups import PASSED
from prorl_cli.coordinator.groups import Group, Member, Send
from prorl_cli.coordinator.sampler import held_out
from prorl_cli.recipe import Recipe
from prorl_cli.spool.evals import Evaluation
from prorl_cli.spool.trajectories import Entry
from prorl_cli.trajectory import GroupRequest, Purpose

ITEMS = 1_000_000
"""Group numbers that one version's evaluation may use."""


def due(recipe: Recipe, version: int) -> bool:
    """Whether weights `version` are evaluated: before the first step, every `eval.every`, and after the last."""
    if not recipe.eval.n:
        return False
    every = recipe.eval.every
    return version == 0 or version >= recipe.learner.steps or bool(every and version % every == 0)


class Evaluator:
    """The evaluation of `version`; while it is unfinished no later step is published, so that engines hold it."""

    def __init__(self, recipe: Recipe, version: int) -> None:
        self.version = version
        self._deadline = recipe.rollout.deadline
        self.groups = {
            version * ITEMS + item: Group(
                number=version * ITEMS + item, purpose=Purpose.EVAL, draw=draw, members=[Member()],
                retries=recipe.rollout.retries,
            )
            for item, draw in enumerate(held_out(recipe.tasks, recipe.eval.n, recipe.seed))
        }  # fmt: skip

    @property
    def finished(self) -> int:
        """Items answered or given up."""
        return sum(group.resolved for group in self.groups.values())

    @property
    def done(self) -> bool:
        return self.finished == len(self.groups)

    def asked(self, worker: str, request: GroupRequest, clock: float) -> None:
        """A request found in a log."""
        if group := self.groups.get(request.group):
            group.asked(worker, request)
            group.deadline = clock + self._deadline

    def take(self, entry: Entry, clock: float) -> None:
        """An index entry of an eval record."""
        if group := self.groups.get(entry.group):
            group.take(entry, clock)

    def hand_out(self, free: dict[str, int], clock: float) -> list[Send]:
        """Give items to the workers with `free` slots, to be served by exactly this version."""
        sends: list[Send] = []
        for group in self.groups.values():
            if found := group.hand_out(free, self.version, clock):
                sends += found
                group.deadline = clock + self._deadline if group.deadline is None else group.deadline
        return sends

    def summary(self) -> Evaluation:
        """The figures, over the items that were answered."""
        by_domain: dict[str, list[float]] = {}
        for group in self.groups.values():
            if (entry := group.members[0].finished) is not None:
                by_domain.setdefault(group.draw.task.domain, []).append(entry.reward)
        rewards = [reward for domain in by_domain.values() for reward in domain]
        share, stderr = pass_at_1(rewards) if rewards else (0.0, 0.0)
        return Evaluation(
            version=self.version,
            n=len(rewards),
            passed=float(sum(reward >= PASSED for reward in rewards)),
            pass_at_1=share,
            stderr=stderr,
            by_domain={name: pass_at_1(found)[0] for name, found in sorted(by_domain.items())},
            failed=len(self.groups) - len(rewards),
        )
