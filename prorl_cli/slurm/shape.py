"""The nodes of a job: which groups of equal nodes it asks Slurm for, and which component lives on which. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import Cluster, Component
from prorl_cli.slurm.plan import ComponentName

SIGNAL_SLACK_S = 60
"""From the end of the drain to the time limit: the last step, a checkpoint, the end of every process."""

EARLY_S = 60
"""Slurm may send the signal this much earlier than asked."""

LONGEST_SIGNAL_S = 65535
"""Slurm keeps the time of `--signal` in sixteen bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One component of a heterogeneous job, or the whole of a plain one: `nodes` nodes, each as `component` asks.

    `holds` says which components live on its nodes, in the order of the nodes, and how many nodes each has.
    """

    name: str
    nodes: int
    component: Component
    holds: tuple[tuple[ComponentName, int], ...]


def groups(recipe: Recipe) -> tuple[Group, ...]:
    """The groups of the main job, the one of the batch script first."""
    names = _components(recipe)
    if recipe.cluster.topology == "single":
        holds = tuple((name, component(recipe.cluster, name).nodes) for name in names)
        nodes = sum(count for _, count in holds)
        return (Group(name="all", nodes=nodes, component=recipe.cluster.learner, holds=holds),)
    return tuple(_group(recipe.cluster, name) for name in names)


def satellite_group(recipe: Recipe) -> Group:
    """What the job of one satellite asks for: one rollout node."""
    asked = recipe.cluster.rollout
    return Group(name="rollout", nodes=1, component=asked, holds=(("rollout", 1),))


def component(cluster: Cluster, name: ComponentName) -> Component:
    """The section `cluster.<name>`."""
    sections: dict[ComponentName, Component] = {
        "control": cluster.control, "rollout": cluster.rollout, "engine": cluster.engine, "learner": cluster.learner,
    }  # fmt: skip
    return sections[name]


def signal_s(cluster: Cluster) -> int:
    """How many seconds before its time limit a job is told."""
    return int(cluster.drain) + SIGNAL_SLACK_S


def mistakes(recipe: Recipe) -> list[str]:
    """What Slurm would silently understand otherwise than the recipe means it."""
    return [
        *_inherited(recipe),
        *_too_small(recipe),
        *_idle(recipe),
        *_too_short(recipe.cluster),
        *_unspeakable(recipe),
    ]


def _components(recipe: Recipe) -> tuple[ComponentName, ...]:
    first: ComponentName = "control" if recipe.cluster.topology == "satellites" else "rollout"
    return (first, "engine", "learner") if recipe.learner.steps else (first, "engine")


def _group(cluster: Cluster, name: ComponentName) -> Group:
    asked = component(cluster, name)
    return Group(name=name, nodes=asked.nodes, component=asked, holds=((name, asked.nodes),))


def _inherited(recipe: Recipe) -> Iterator[str]:
    """Slurm hands these options on to every later component that does not give its own."""
    cluster = recipe.cluster
    for key, common in (("account", cluster.account), ("qos", cluster.qos), ("reservation", ""), ("memory", 0)):
        giver = ""
        for group in groups(recipe):
            if getattr(group.component, key) or common:
                giver = giver or group.name
            elif giver:
                yield (
                    f"cluster.{group.name}.{key} is not set but cluster.{giver}.{key} is: in one heterogeneous job "
                    "Slurm would use the latter for both; set it too"
                )


def _too_small(recipe: Recipe) -> Iterator[str]:
    """A plain job has one kind of node."""
    cluster = recipe.cluster
    for name in _components(recipe) if cluster.topology == "single" else ():
        for key in ("gpus", "cpus", "memory"):
            needed, asked = getattr(component(cluster, name), key), getattr(cluster.learner, key)
            if needed > asked and not (key != "gpus" and not asked):
                yield (
                    f"cluster.{name}.{key} is more than cluster.learner.{key}, which is what every node is asked for "
                    "with `topology: single`"
                )


def _idle(recipe: Recipe) -> Iterator[str]:
    """What would be paid for and not used."""
    gpus, share = recipe.cluster.engine.gpus, recipe.engine.tensor_parallel
    if recipe.engine.kind == "vllm" and gpus % share:
        yield f"cluster.engine.gpus ({gpus}) is no multiple of engine.tensor_parallel ({share}): some would idle"
    if recipe.learner.backend == "torch" and (nodes := recipe.cluster.learner.nodes) > 1:
        yield f"cluster.learner.nodes is {nodes}: more than one needs `learner.backend: deepspeed`"


def _too_short(cluster: Cluster) -> Iterator[str]:
    needed = signal_s(cluster)
    if needed > LONGEST_SIGNAL_S:
        yield f"cluster.drain must be at most {LONGEST_SIGNAL_S - SIGNAL_SLACK_S} s: Slurm announces no end earlier"
    elif cluster.time and cluster.time <= needed + EARLY_S:
        yield (
            f"cluster.time ({cluster.time:.0f} s) leaves nothing for training: its last {needed + EARLY_S} s are "
            f"cluster.drain ({cluster.drain:.0f} s) and what ending takes"
        )


def _unspeakable(recipe: Recipe) -> Iterator[str]:
    """Texts that would end a directive, that Slurm reads as the border of a component, or that it does not read."""
    if re.search(r"^\s*#SBATCH", recipe.cluster.setup, re.MULTILINE):
        yield "cluster.setup holds #SBATCH lines, which come too late to count: give them as cluster.<component>.extra"
    for key, text in _texts(recipe):
        if not text.isprintable():
            yield f"cluster.{key} holds a line break or another control character: {text!r}"
        elif re.search("hetjob|packjob", text, re.IGNORECASE):
            yield f"cluster.{key} holds the word hetjob or packjob, which some versions of sbatch take for a separator"
        elif ".extra[" in key and not re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", text):
            yield f"cluster.{key} is not a long option of sbatch, as --switches=1: {text!r}"


def _texts(recipe: Recipe) -> Iterator[tuple[str, str]]:
    cluster = recipe.cluster
    for key in ("account", "qos", "licenses", "mail"):
        yield key, getattr(cluster, key)
    for name in dict.fromkeys([*_components(recipe), "rollout"]):
        section = component(cluster, name)
        for key in ("partition", "gpu_type", "constraint", "account", "qos", "reservation"):
            yield f"{name}.{key}", getattr(section, key)
        for number, option in enumerate(section.extra):
            yield f"{name}.extra[{number}]", option
