"""Which node of a job is which: read once from Slurm's variables in the batch step, then from the run directory.

Inside a step the same variables describe the step, so nobody but the batch step may derive the nodes from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import ProrlError
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.hostlist import expand
from prorl_cli.slurm.plan import ComponentName
from prorl_cli.slurm.shape import Group


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where one component lives: its job, its place in a heterogeneous job (-1 in a plain one), its nodes and the CPUs
    that the job holds on each."""

    name: ComponentName
    job_id: int
    het_group: int
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """One job: `job_id` is the leader's, as users know it."""

    job_id: int
    components: tuple[Placed, ...]

    def of(self, name: str) -> Placed:
        """Where component `name` lives."""
        found = next((placed for placed in self.components if placed.name == name), None)
        if found is None:
            held = ", ".join(placed.name for placed in self.components)
            raise ProrlError(f"job {self.job_id} has no nodes for {name}, only for: {held}")
        return found

    @property
    def job_ids(self) -> tuple[int, ...]:
        """The job ids of all components: steps are listed by them."""
        return tuple(dict.fromkeys(placed.job_id for placed in self.components))


def topology(groups: Iterable[Group], environment: Mapping[str, str]) -> Topology:
    """The nodes that Slurm gave to `groups`."""
    asked = tuple(groups)
    size = int(environment.get("SLURM_HET_SIZE", "1"))
    if size != len(asked):
        raise ProrlError(f"this job has {size} components, the recipe asks for {len(asked)}: submit it anew")
    placed: list[Placed] = []
    for number, group in enumerate(asked):
        placed += _placed(group, number if "SLURM_HET_SIZE" in environment else -1, environment)
    return Topology(job_id=int(environment["SLURM_JOB_ID"]), components=tuple(placed))


def _placed(group: Group, number: int, environment: Mapping[str, str]) -> list[Placed]:
    """The components that live in one group, on its nodes in their order."""
    end = f"_HET_GROUP_{number}" if number >= 0 else ""
    nodes = expand(environment[f"SLURM_JOB_NODELIST{end}"])
    cpus = each_node(environment[f"SLURM_JOB_CPUS_PER_NODE{end}"])
    if len(nodes) != group.nodes or len(cpus) != len(nodes):
        raise ProrlError(f"this job has {len(nodes)} nodes for {group.name}, the recipe asks for {group.nodes}")
    found, start = [], 0
    for name, count in group.holds:
        part = slice(start, start + count)
        job_id = int(environment[f"SLURM_JOB_ID{end}"])
        found.append(
            Placed(name=name, job_id=job_id, het_group=number, nodes=tuple(nodes[part]), cpus=tuple(cpus[part]))
        )
        start += count
    return found


def each_node(text: str) -> list[int]:
    """Slurm's `8(x2),4` as a number for each node."""
    counts: list[int] = []
    for part in text.split(","):
        if not (match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)):
            raise ProrlError(f"not a list of numbers as Slurm writes them: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def write_topology(run: RunDir, attempt: int, found: Topology) -> None:
    """Said once, by whoever runs the attempt."""
    fsio.publish(run.plan(attempt), msgspec.json.format(msgspec.json.encode(found)))


def read_topology(run: RunDir, attempt: int) -> Topology | None:
    """Where an attempt runs; None for one that is not a Slurm job."""
    data = fsio.read(run.plan(attempt))
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Topology)
    except msgspec.DecodeError as error:
        raise ProrlError(f"{run.plan(attempt)} is damaged: {error}") from error
