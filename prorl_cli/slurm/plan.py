"""The plan: which processes a recipe needs. Pure; every way of running starts from the same plan."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One role process: `name` is its slot and its log, `room` the module that is its `main`."""

    name: str
    room: str

    def command(self, root: Path) -> list[str]:
        """The argv that starts it."""
        return [sys.executable, "-m", f"prorl_cli.{self.room}", str(root)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """First `prepare`, if any, to its end, then all of `roles` side by side."""

    prepare: Process | None
    roles: tuple[Process, ...]

    def lines(self, root: Path) -> Iterator[str]:
        """What would be started, for `--dry-run`."""
        if self.prepare is not None:
            yield f"first  {self.prepare.name:<14} {shlex.join(self.prepare.command(root))}"
        for role in self.roles:
            yield f"then   {role.name:<14} {shlex.join(role.command(root))}"


def plan_processes(recipe: Recipe, *, has_weights: bool) -> Plan:
    """One coordinator and router, the engines and rollout workers asked for, and the learner when there are steps;
    before them whoever makes the first weights, unless the run has some."""
    counts = {
        "coordinator": 1,
        "router": 1,
        "engine": recipe.cluster.engine.nodes,
        "rollout": recipe.cluster.rollout.nodes,
        "learner": 1 if recipe.learner.steps else 0,
    }
    roles = tuple(
        Process(name=f"{room}-{number}", room=room) for room, count in counts.items() for number in range(count)
    )
    first = None if has_weights else Process(name="warmstart", room="warmstart")
    return Plan(prepare=first, roles=roles)
