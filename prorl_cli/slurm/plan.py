"""The plan: which processes a recipe needs, and on which of its nodes. Pure; every way of running starts from it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from prorl_cli.recipe import Recipe

ComponentName = Literal["control", "rollout", "engine", "learner"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One role process: `name` is its slot and its log, `room` the module that is its `main`.

    On a cluster it runs on `nodes` nodes of `component`, the first of which is number `node` of that component, as
    `tasks` ranks in all, and sees `gpus` GPUs a node. Where `devices` names some of them it uses only those: Slurm
    shows the same GPUs to steps that run side by side. Locally it is one process of this machine.
    """

    name: str
    room: str
    component: ComponentName = "rollout"
    node: int = 0
    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    devices: tuple[int, ...] = ()

    def arguments(self, root: Path) -> list[str]:
        """What its Python interpreter is given."""
        return ["-m", f"prorl_cli.{self.room}", str(root)]

    def command(self, root: Path) -> list[str]:
        """The argv that starts it on this machine."""
        return [sys.executable, *self.arguments(root)]


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
    """The processes of one attempt: coordinator, router, engines, rollout workers (unless they are satellites), the
    learner when there are steps; before them whoever makes the first weights, unless the run has some."""
    cluster = recipe.cluster
    home: ComponentName = "control" if has_satellites(recipe) else "rollout"
    roles = [Process(name=f"{room}-0", room=room, component=home) for room in ("coordinator", "router")]
    roles += _engines(recipe)
    if not has_satellites(recipe):
        roles += [rollout_worker(recipe, node) for node in range(cluster.rollout.nodes)]
    if recipe.learner.steps:
        roles.append(_learner(recipe))
    first = None if has_weights else Process(name="warmstart", room="warmstart", component=home)
    return Plan(prepare=first, roles=tuple(roles))


def satellite_plan(recipe: Recipe, number: int) -> Plan:
    """What the satellite job of rollout worker `number` runs, on its one node."""
    return Plan(prepare=None, roles=(rollout_worker(recipe, number, node=0),))


def rollout_worker(recipe: Recipe, number: int, *, node: int | None = None) -> Process:
    """Rollout worker `number`; on the node of that number unless `node` says otherwise."""
    where = number if node is None else node
    return Process(
        name=f"rollout-{number}", room="rollout", component="rollout", node=where, gpus=recipe.cluster.rollout.gpus
    )


def has_satellites(recipe: Recipe) -> bool:
    """Whether rollout workers are jobs of their own."""
    return recipe.cluster.executor == "slurm" and recipe.cluster.topology == "satellites"


def engines_per_node(recipe: Recipe) -> int:
    """One, or as many vLLM servers as the GPUs of a node hold."""
    gpus = recipe.cluster.engine.gpus if recipe.engine.kind == "vllm" else 0
    return max(1, gpus // recipe.engine.tensor_parallel)


def _engines(recipe: Recipe) -> Iterator[Process]:
    gpus, share, each = recipe.cluster.engine.gpus, recipe.engine.tensor_parallel, engines_per_node(recipe)
    local = recipe.cluster.executor == "local"
    for number in range(recipe.cluster.engine.nodes * each):
        node, place = divmod(number, each)
        first = place * share + (node * gpus if local else 0)
        yield Process(
            name=f"engine-{number}", room="engine", component="engine", node=node, gpus=gpus,
            devices=tuple(range(first, first + share)) if gpus and recipe.engine.kind == "vllm" else (),
        )  # fmt: skip


def _learner(recipe: Recipe) -> Process:
    """One process: a rank a GPU, or a node where there are none; one rank in all with the `torch` backend."""
    asked, many = recipe.cluster.learner, recipe.learner.backend == "deepspeed"
    nodes, ranks = (asked.nodes, asked.nodes * max(1, asked.gpus)) if many else (1, 1)
    return Process(name="learner-0", room="learner", component="learner", nodes=nodes, tasks=ranks, gpus=asked.gpus)
