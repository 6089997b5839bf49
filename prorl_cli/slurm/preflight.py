"""Everything about a recipe that this cluster would refuse, never start or silently misunderstand, found before sbatch.

`check` is pure; `inspect` gathers what it needs and leaves nothing behind. Called by `launch`, `resume` and `doctor`.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import Cluster, Component
from prorl_cli.recipe.units import format_duration, format_size
from prorl_cli.slurm.commands import SlurmError, slurm
from prorl_cli.slurm.facts import Facts, Node, Partition, gather
from prorl_cli.slurm.places import place_doubts, place_problems
from prorl_cli.slurm.script import render
from prorl_cli.slurm.shape import EARLY_S, Group, groups, mistakes, satellite_group, signal_s

MAY_PASS = (
    "node configuration is not available",
    "odes required for job are DOWN",
    "odes are busy",
    "node not available",
)
"""Refusals of a rehearsal that nodes which come back make untrue; what no node ever has, `check` finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """`errors` end the launch; `doubts` are said and survive it."""

    errors: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def inspect(
    recipe: Recipe, run_root: Path, *, facts: Callable[[], Facts] = gather,
    rehearsal: Callable[[Recipe, Path], str] | None = None,
) -> Findings:  # fmt: skip
    """Ask the cluster and the filesystem; every finding at once, and Slurm's own only where there is none."""
    found, errors = None, list(mistakes(recipe))
    try:
        found = facts()
        errors += check(recipe, found)
    except SlurmError as error:
        errors.append(str(error))
    errors += place_problems(recipe, run_root, found)
    doubts = list(place_doubts(recipe, run_root, found))
    if not errors and (refused := (rehearsal or rehearse)(recipe, run_root)):
        (doubts if any(words in refused for words in MAY_PASS) else errors).append(refused)
    return Findings(errors=tuple(dict.fromkeys(errors)), doubts=tuple(doubts))


def rehearse(recipe: Recipe, run_root: Path) -> str:
    """What Slurm itself says against the script, empty when it would take it: sites have rules that only it knows."""
    with tempfile.TemporaryDirectory(prefix="prorl-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(render(recipe, run_root, "rehearsal"), encoding="utf-8")
        try:
            slurm(["sbatch", "--test-only", str(script)])
        except SlurmError as error:
            return f"Slurm would refuse it, {error}"
    return ""


def check(recipe: Recipe, facts: Facts) -> list[str]:
    """What is wrong with asking this cluster for this recipe: what, where in the recipe, what to do."""
    wanted = groups(recipe)
    singles = [*wanted, satellite_group(recipe)] if recipe.cluster.topology == "satellites" else [*wanted]
    problems = [text for group in singles for text in _group_problems(group, recipe.cluster, facts)]
    if not problems:
        problems += _disjoint_problems(wanted, facts)
    problems += _unsaid_time(recipe.cluster, wanted, facts)
    return [*_heterogeneous_problems(wanted, facts), *problems, *_association_problems(recipe, singles, facts)]


def _key(group: Group) -> str:
    return f"cluster.{'learner' if group.name == 'all' else group.name}"


def _partitions(group: Group, facts: Facts) -> list[Partition]:
    """Those of its list that exist; Slurm takes the one that starts first."""
    names = group.component.partition.split(",") if group.component.partition else [""]
    return [found for name in names if (found := facts.partition(name.strip())) is not None]


def _group_problems(group: Group, cluster: Cluster, facts: Facts) -> Iterator[str]:
    unknown = list(_unknown_partitions(group, facts))
    yield from unknown
    if unknown:
        return
    partitions = _partitions(group, facts)
    yield from _closed(group, partitions)
    yield from _too_long(group, cluster, partitions)
    yield from _not_allowed(group, cluster, partitions)
    yield from _node_problems(group, partitions, facts)


def _unknown_partitions(group: Group, facts: Facts) -> Iterator[str]:
    names = [partition.name for partition in facts.partitions]
    if not group.component.partition and facts.partition("") is None:
        yield f"{_key(group)}.partition: this cluster has no default partition; name one of {', '.join(names)}"
    for name in filter(None, (name.strip() for name in group.component.partition.split(","))):
        if name not in names:
            yield f"{_key(group)}.partition: there is no partition {name!r}{_nearest(name, names)}"


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(dict.fromkeys(known))
    close = [n for n in names if n.lower() == name.lower()] or get_close_matches(name, names, 1)
    return (f"; did you mean {close[0]!r}?" if close else "") + f" (there are: {', '.join(names) or 'none'})"


def _closed(group: Group, partitions: list[Partition]) -> Iterator[str]:
    if all(partition.state != "UP" for partition in partitions):
        told = ", ".join(f"{partition.name} is {partition.state}" for partition in partitions)
        yield f"{_key(group)}.partition: {told}: choose an open one, or launch when it is back"


def _too_long(group: Group, cluster: Cluster, partitions: list[Partition]) -> Iterator[str]:
    """Slurm queues such a job by default, and never starts it."""
    limits = [partition.max_time_s for partition in partitions]
    longest = None if None in limits else max(limit for limit in limits if limit is not None)
    if longest is not None and cluster.time > longest:
        names = ",".join(partition.name for partition in partitions)
        yield (
            f"cluster.time: {format_duration(cluster.time)} is over the {format_duration(longest)} that partition "
            f"{names} allows ({_key(group)}): lower it, and let `cluster.chain` go on from there"
        )


def _unsaid_time(cluster: Cluster, wanted: Iterable[Group], facts: Facts) -> Iterator[str]:
    """Without `cluster.time` each component gets the limit of its own partition, and the signal before its end."""
    if cluster.time:
        return
    found = {_key(group): {one.own_time_s for one in _partitions(group, facts)} for group in wanted}
    limits = {limit for own in found.values() for limit in own}
    needed = signal_s(cluster) + EARLY_S
    if short := min((limit for limit in limits if limit is not None and limit <= needed), default=None):
        yield f"cluster.time is not set, and {format_duration(short)} of a partition leave nothing for training: set it"
    elif len(limits) > 1:
        told = ", ".join(f"{key} {_limit_text(limit)}" for key, own in found.items() for limit in own)
        yield f"cluster.time is not set, and the partitions would end the components apart ({told}): set it"


def _limit_text(limit: float | None) -> str:
    return "no limit" if limit is None else format_duration(limit)


def _not_allowed(group: Group, cluster: Cluster, partitions: list[Partition]) -> Iterator[str]:
    account, qos = group.component.account or cluster.account, group.component.qos or cluster.qos
    for kind, value in (("accounts", account), ("qos", qos)):
        allowed = [getattr(partition, kind) for partition in partitions]
        if value and all(names is not None and value not in names for names in allowed):
            names = sorted(set().union(*filter(None, allowed)))
            yield (
                f"{_key(group)}: partition {','.join(p.name for p in partitions)} does not admit "
                f"{kind.removesuffix('s') if kind == 'accounts' else 'QOS'} {value!r}{_nearest(value, names)}"
            )


def _node_problems(group: Group, partitions: list[Partition], facts: Facts) -> Iterator[str]:
    names = {partition.name for partition in partitions}
    nodes = [node for node in facts.nodes if node.partition in names]
    lacking = list(_lacking(group, nodes))
    yield from lacking
    fitting = Counter(node.partition for node in nodes if _fits(node, group.component))
    there, where = (
        max(fitting.values(), default=0),
        ",".join(sorted(names)),
    )  # all nodes come from one of its partitions
    if not lacking and there < group.nodes:
        yield (
            f"{_key(group)}.nodes: asks for {group.nodes} nodes, but partition {where} has only {there} "
            f"that fit ({len({node.name for node in nodes})} in all): ask for fewer, or for less of each"
        )
    limits = [partition.max_nodes for partition in partitions]
    if limits and all(limit is not None and group.nodes > limit for limit in limits):
        most = max(filter(None, limits))
        yield f"{_key(group)}.nodes: asks for {group.nodes} nodes, and partition {where} allows {most} a job"


def _lacking(group: Group, nodes: list[Node]) -> Iterator[str]:
    """What no node has at all."""
    asked, key = group.component, _key(group)
    if asked.gpus:
        yield from _gpu_problem(key, asked, nodes)
    most_cpus = max((node.cpus for node in nodes), default=0)
    if asked.cpus > most_cpus:
        yield f"{key}.cpus: asks for {asked.cpus} a node, and the largest node there has {most_cpus}"
    most_memory = max((node.memory for node in nodes), default=0)
    if asked.memory > most_memory:
        yield (
            f"{key}.memory: asks for {format_size(asked.memory)} a node, and the largest node there has "
            f"{format_size(most_memory // 2**20 * 2**20)}"
        )
    for feature in _required(asked.constraint):
        if not any(feature in node.features for node in nodes):
            known = sorted(set().union(*(node.features for node in nodes)))
            yield f"{key}.constraint: no node there has the feature {feature!r}{_nearest(feature, known)}"


def _gpu_problem(key: str, asked: Component, nodes: list[Node]) -> Iterator[str]:
    kinds = sorted({kind for node in nodes for kind, _ in node.gpus if kind})
    most = max((node.gpu_count(asked.gpu_type) for node in nodes), default=0)
    if not any(node.gpus for node in nodes):
        yield f"{key}.gpus: asks for {asked.gpus} a node, and no node of its partition has GPUs that Slurm knows of"
    elif asked.gpu_type and not most:
        yield f"{key}.gpu_type: nobody there has GPUs of type {asked.gpu_type!r}{_nearest(asked.gpu_type, kinds)}"
    elif asked.gpus > most:
        kind = f" of type {asked.gpu_type}" if asked.gpu_type else ""
        yield f"{key}.gpus: asks for {asked.gpus} a node, and the largest node there has {most}{kind}"


def _required(constraint: str) -> list[str]:
    """Features that every node must have; only plain `a&b` is understood, the rest is left to Slurm."""
    return constraint.split("&") if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", constraint) else []


def _fits(node: Node, asked: Component) -> bool:
    return (
        node.cpus >= asked.cpus
        and node.memory >= asked.memory
        and node.gpu_count(asked.gpu_type) >= asked.gpus
        and node.features.issuperset(_required(asked.constraint))
    )


def _disjoint_problems(wanted: tuple[Group, ...], facts: Facts) -> Iterator[str]:
    """Components of one job never share a node: any set of them needs as many nodes together as they ask for."""
    usable = {
        group.name: {
            node.name
            for node in facts.nodes
            if node.partition in {p.name for p in _partitions(group, facts)} and _fits(node, group.component)
        }
        for group in wanted
    }
    for size in range(2, len(wanted) + 1):
        for some in itertools.combinations(wanted, size):
            needed, there = sum(g.nodes for g in some), len(set().union(*(usable[g.name] for g in some)))
            if there < needed:
                yield (
                    f"{' and '.join(f'{_key(g)}.nodes ({g.nodes})' for g in some)}: Slurm gives every component nodes "
                    f"of its own, that is {needed}, and only {there} fit: ask for fewer, use another partition, or "
                    "`cluster.topology: single`"
                )
                return


def _heterogeneous_problems(wanted: tuple[Group, ...], facts: Facts) -> Iterator[str]:
    scheduler = facts.settings.get("SchedulerType", "sched/backfill")
    if len(wanted) > 1 and scheduler != "sched/backfill":
        yield (
            f"cluster.topology: only the backfill scheduler starts heterogeneous jobs, and this cluster has "
            f"{scheduler}: use `topology: single`"
        )


def _association_problems(recipe: Recipe, wanted: list[Group], facts: Facts) -> Iterator[str]:
    """Accounts and QOS that this user does not have, as far as the cluster tells."""
    if facts.associations is None:
        return
    accounts = [a.account for a in facts.associations]
    qos = set().union(*(a.qos for a in facts.associations))
    for group in wanted:
        own = group.component.account
        key, value = (f"{_key(group)}.account", own) if own else ("cluster.account", recipe.cluster.account)
        if value and value not in accounts:
            yield f"{key}: you have no account {value!r} here{_nearest(value, accounts)}"
        own = group.component.qos
        key, value = (f"{_key(group)}.qos", own) if own else ("cluster.qos", recipe.cluster.qos)
        if value and qos and value not in qos:
            yield f"{key}: you may not use a QOS {value!r} here{_nearest(value, sorted(qos))}"
