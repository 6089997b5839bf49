"""Which rank of the learner this process is, and how ranks find each other. Refuses to guess from host names.

Rank 0 listens and leaves a small file in the attempt's folder; the others read it until a deadline, so a file that a
killed predecessor left costs another look and nothing else. Called by `__main__`, the DeepSpeed trainer and followers.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from prorl_cli import fsio
from prorl_cli.errors import ProrlError
from prorl_cli.trajectory import Record
from prorl_cli.wire.address import family

T = TypeVar("T")

JOIN_S = 300.0
"""Ranks are started together; this is for nodes that read their Python from a slow filesystem."""

KEY = "PRORL_RANKS"
"""Environment variable that tells apart learners which were started by hand in one attempt."""

_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank of `ranks`, the `local_rank`-th of its node; `key` is what the ranks of one start have in common."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    key: str = "local"


def place(environment: Mapping[str, str], *, slurm: bool) -> Place:
    """Where the variables of a Slurm step, or those of a launcher of torch processes, put this process."""
    if slurm and "SLURM_STEP_NUM_TASKS" in environment:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        key = f"{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    elif not slurm and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        key = environment.get(KEY, "local")
    else:
        return Place()
    rank, ranks, local = (int(environment[name]) for name in names)
    return Place(rank=rank, ranks=ranks, local_rank=local, key=key)


class Rendezvous(Record):
    """Where rank 0 listens: for the other ranks' lifelines, and with torch's store."""

    address: str
    lifeline: int
    store: int


def leave_rendezvous(path: Path, rendezvous: Rendezvous) -> None:
    """Publish it."""
    fsio.publish(path, msgspec.json.encode(rendezvous))


def reach(path: Path, connect: Callable[[Rendezvous], T]) -> T:
    """What `connect` makes of the rendezvous, tried until it works or the deadline is over."""
    end = time.monotonic() + JOIN_S
    while True:
        try:
            return connect(msgspec.json.decode(fsio.read(path) or b"", type=Rendezvous))
        except (OSError, msgspec.DecodeError) as error:
            if time.monotonic() > end:
                raise ProrlError(f"rank 0 of the learner was not there within {JOIN_S:.0f} s: {error}") from error
        time.sleep(_LOOK_S)


def listening(address: str) -> socket.socket:
    """A socket that listens on that address only, on a port that the system chose."""
    return socket.create_server((address, 0), family=family(address))


def interface_of(address: str) -> str:
    """The network interface that has `address`; gloo and NCCL want its name."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise ProrlError(f"no network interface of this node has the address {address}")
