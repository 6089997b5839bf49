"""What this cluster has: partitions, nodes, limits, the user's associations. Gathered with four cheap questions.

Called by `preflight` and `doctor`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from prorl_cli.slurm.answers import keyed_lines, seconds, settings
from prorl_cli.slurm.commands import SlurmError, slurm

NODE_FORMAT = "%N|%n|%R|%c|%m|%G|%T|%f"
"""Name, host, partition, cores, memory in MiB, GRES, state, features: a line a node and partition."""

Ask = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node as one partition shows it; `gpus` counts by type, an untyped one under an empty name."""

    name: str
    host: str
    partition: str
    cpus: int
    memory: int
    gpus: tuple[tuple[str, int], ...] = ()
    state: str = "idle"
    features: frozenset[str] = frozenset()

    def gpu_count(self, kind: str = "") -> int:
        """GPUs of one type, of all types together when `kind` is empty."""
        return sum(count for name, count in self.gpus if kind in ("", name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition's rules; None: no limit, or everybody."""

    name: str
    default: bool = False
    state: str = "UP"
    max_time_s: float | None = None
    default_time_s: float | None = None
    max_nodes: int | None = None
    accounts: frozenset[str] | None = None
    qos: frozenset[str] | None = None

    @property
    def own_time_s(self) -> float | None:
        """The time limit of a job that names none."""
        return self.max_time_s if self.default_time_s is None else self.default_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """One right of this user to submit: an empty partition means any."""

    account: str
    partition: str = ""
    qos: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A cluster; `associations` is None where nobody keeps accounts."""

    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    settings: dict[str, str] = field(default_factory=dict)
    associations: tuple[Association, ...] | None = None

    def partition(self, name: str) -> Partition | None:
        """By name; the default one for an empty name."""
        return next((p for p in self.partitions if p.name == name or (not name and p.default)), None)


def gather(ask: Ask = slurm) -> Facts:
    """Ask the cluster; `SlurmError` when it cannot be asked."""
    partitions = tuple(map(_partition, keyed_lines(ask(["scontrol", "-a", "show", "partition", "-o"]))))
    nodes = tuple(nodes_of(ask(["sinfo", "-h", "-a", "-N", "-o", NODE_FORMAT])))
    found = settings(ask(["scontrol", "show", "config"]))
    return Facts(partitions=partitions, nodes=nodes, settings=found, associations=_associations(found, ask))


def nodes_of(text: str) -> Iterable[Node]:
    """Lines of `sinfo -N -o NODE_FORMAT`."""
    for line in text.splitlines():
        fields = line.split("|", 7)
        if len(fields) == 8:
            name, host, partition, cpus, memory, gres, state, features = fields
            yield Node(
                name=name, host=host, partition=partition, cpus=_number(cpus), memory=_number(memory) * 2**20,
                gpus=gpus_of(gres), state=state.rstrip("*~#!%$@^-+").lower(),
                features=frozenset() if features == "(null)" else frozenset(features.split(",")),
            )  # fmt: skip


def gpus_of(gres: str) -> tuple[tuple[str, int], ...]:
    """`gpu:h100:4(S:0-1),gpu:2` → (("h100", 4), ("", 2))."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    found = []
    for entry in plain.split(","):
        if match := re.fullmatch(r"gpu(?::([^:]*[^:\d][^:]*))?(?::(\d+))?", entry.strip()):
            found.append((match[1] or "", int(match[2] or 1)))
    return tuple(found)


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def _partition(pairs: dict[str, str]) -> Partition:
    return Partition(
        name=pairs.get("PartitionName", ""), default=pairs.get("Default") == "YES",
        state=pairs.get("State", "UP"), max_time_s=seconds(pairs.get("MaxTime", "")),
        default_time_s=seconds(pairs.get("DefaultTime", "")),
        max_nodes=_number(pairs["MaxNodes"]) if pairs.get("MaxNodes", "UNLIMITED").isdigit() else None,
        accounts=_names(pairs.get("AllowAccounts", "ALL")), qos=_names(pairs.get("AllowQos", "ALL")),
    )  # fmt: skip


def _names(text: str) -> frozenset[str] | None:
    return None if text in ("ALL", "(null)", "") else frozenset(text.split(","))


def _associations(found: dict[str, str], ask: Ask) -> tuple[Association, ...] | None:
    """This user's; None where there is no accounting or it will not say."""
    if "slurmdbd" not in found.get("AccountingStorageType", ""):
        return None
    import getpass

    try:
        text = ask(["sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}",
                    "format=account,partition,qos"])  # fmt: skip
    except (SlurmError, KeyError, OSError):
        return None
    return tuple(associations_of(text)) or None


def associations_of(text: str) -> Iterable[Association]:
    """Lines of `sacctmgr -nP show assoc format=account,partition,qos`."""
    for line in text.splitlines():
        account, partition, qos = (*line.split("|", 2), "", "")[:3]
        if account:
            yield Association(account=account, partition=partition, qos=frozenset(filter(None, qos.split(","))))
