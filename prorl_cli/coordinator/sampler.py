"""Which task a group is about: pure functions of the recipe's seed, the group's number and the tasks' weights.

Called when a group is admitted, and again after a restart with the same answer. Items of one task are numbered by
how often it was drawn before, so that none repeats before a finite source is exhausted.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate

from prorl_cli.recipe import TaskSpec
from prorl_cli.trajectory import TaskRef

SEED_BYTES = 6
"""48-bit seeds: positive, and exact in every JSON reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one group rolls out, and the seed of everything random in it."""

    task: TaskRef
    seed: int


class Sampler:
    """Draws of train groups 0, 1, 2, … in proportion to the tasks' weights."""

    def __init__(self, tasks: Sequence[TaskSpec], seed: int) -> None:
        self._tasks = tasks
        self._seed = seed
        self._bounds = list(accumulate(task.weight for task in tasks))
        self._counts = [0] * len(tasks)
        self._drawn = array("H")
        self._items = array("L")

    def draw(self, group: int) -> Draw:
        """The task, item and seed of train group `group`."""
        while len(self._drawn) <= group:
            self._draw_next()
        number = self._drawn[group]
        task = TaskRef(task=number, domain=self._tasks[number].domain, index=self._items[group])
        return Draw(task=task, seed=_digest(self._seed, "train", group))

    def _draw_next(self) -> None:
        share = _digest(self._seed, "task", len(self._drawn)) / 256**SEED_BYTES
        number = min(bisect_right(self._bounds, share * self._bounds[-1]), len(self._bounds) - 1)
        self._drawn.append(number)
        self._items.append(self._counts[number])
        self._counts[number] += 1


def held_out(tasks: Sequence[TaskSpec], n: int, seed: int) -> list[Draw]:
    """The `n` items of an evaluation, the same at every weight version, split over the tasks by their weights."""
    refs = [
        TaskRef(task=number, domain=task.domain, index=index)
        for number, (task, share) in enumerate(zip(tasks, split(n, [t.weight for t in tasks]), strict=True))
        for index in range(share)
    ]
    return [Draw(task=ref, seed=_digest(seed, "eval", item)) for item, ref in enumerate(refs)]


def split(n: int, weights: Sequence[float]) -> list[int]:
    """`n` in whole parts proportional to `weights`, by largest remainder (ties to the first)."""
    exact = [n * weight / sum(weights) for weight in weights]
    parts = [int(part) for part in exact]
    by_remainder = sorted(range(len(parts)), key=lambda i: (parts[i] - exact[i], i))
    for i in by_remainder[: n - sum(parts)]:
        parts[i] += 1
    return parts


def _digest(seed: int, what: str, number: int) -> int:
    return int.from_bytes(blake2b(f"{seed}/{what}/{number}".encode(), digest_size=SEED_BYTES).digest())
