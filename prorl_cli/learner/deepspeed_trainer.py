"""The DeepSpeed trainer: rank 0 walks, the other ranks do with it whatever the walk asks of its trainer.

Knows how ranks meet; what they then do together is `sharded`. Called by the learner (rank 0) and by followers.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]

from prorl_cli.learner.batch import Batch, schedule
from prorl_cli.learner.lifeline import Command, Leader, Lifeline
from prorl_cli.learner.ranks import Place, Rendezvous, interface_of, leave_rendezvous, listening, reach
from prorl_cli.learner.sharded import ShardedPolicy
from prorl_cli.learner.trainer import StepNumbers, StepStats
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.wire.address import LOOPBACK, choose

log = logging.getLogger("learner")

COLLECTIVE_S = 1800.0
"""Ranks wait for each other's micro-batches and files, never for data to train on; more than this is a hang."""


class DeepSpeedTrainer:
    """`Trainer` of rank 0."""

    def __init__(self, recipe: Recipe, policy: ShardedPolicy, others: Leader | None, ranks: int) -> None:
        self._budget = recipe.learner.micro_batch_tokens
        self._policy = policy
        self._others = others
        self._ranks = ranks

    @property
    def vocab_size(self) -> int:
        return self._policy.vocab_size

    @property
    def dirty(self) -> bool:
        return self._policy.dirty

    def load(self, folder: Path) -> None:
        self._tell(Command(do="load", folder=str(folder)))
        self._policy.load(folder)

    def set_reference(self, folder: Path) -> None:
        self._tell(Command(do="set_reference", folder=str(folder)))
        self._policy.set_reference(folder)

    def train(self, batch: Batch, numbers: StepNumbers, halted: Callable[[], bool]) -> StepStats:
        plans = schedule(batch, ranks=self._ranks, budget=self._budget)
        if self._others is not None:
            self._others.tell(lambda rank: Command(do="train", shares=plans[rank], numbers=numbers))
        return self._policy.train(plans[0], numbers, halted)

    def save(self, folder: Path) -> None:
        self._tell(Command(do="save", folder=str(folder)))
        self._policy.save(folder)

    def restore(self, folder: Path) -> None:
        self._tell(Command(do="restore", folder=str(folder)))
        self._policy.restore(folder)

    def export(self, folder: Path) -> dict[str, str]:
        self._tell(Command(do="export", folder=str(folder)))
        return self._policy.export(folder)

    def digests(self) -> dict[str, str]:
        self._tell(Command(do="digests"))
        return self._policy.digests()

    def close(self) -> None:
        if self._others is not None:
            self._others.close()

    def _tell(self, command: Command) -> None:
        if self._others is not None:
            self._others.tell(lambda rank: command)


def lead(run: RunDir, recipe: Recipe, attempt: int, place: Place, halted: Callable[[], bool]) -> DeepSpeedTrainer:
    """The trainer of rank 0, once all ranks are there; `Interrupted` when `halted` before."""
    others = None
    if place.ranks == 1:
        _begin(place, HashStore(), LOOPBACK)
    else:
        address = choose(os.environ, recipe.cluster.interface)
        door, store = listening(address), listening(address)
        leave_rendezvous(
            run.rendezvous(attempt, place.key),
            Rendezvous(address=address, lifeline=door.getsockname()[1], store=store.getsockname()[1]),
        )
        others = Leader(run, door, place.ranks, halted)
        _begin(place, _store(place, address, store.getsockname()[1], store), address)
    return DeepSpeedTrainer(recipe, ShardedPolicy(recipe, place), others, place.ranks)


def follow(run: RunDir, recipe: Recipe, attempt: int, place: Place) -> tuple[ShardedPolicy, Lifeline]:
    """What another rank works with, once it is one of the group."""

    def connect(there: Rendezvous) -> tuple[Lifeline, Rendezvous]:
        return Lifeline(run, place.rank, there.address, there.lifeline), there

    lifeline, there = reach(run.rendezvous(attempt, place.key), connect)
    _begin(place, _store(place, there.address, there.store), lifeline.address)
    return ShardedPolicy(recipe, place), lifeline


def _store(place: Place, address: str, port: int, listener: socket.socket | None = None) -> TCPStore:
    """Torch's rendezvous, which has no password: on one address, on a port that is known inside the run only."""
    return TCPStore(
        address, port, place.ranks, is_master=listener is not None, wait_for_workers=False,
        timeout=timedelta(seconds=COLLECTIVE_S), master_listen_fd=None if listener is None else listener.detach(),
    )  # fmt: skip


def _begin(place: Place, store: Store, address: str) -> None:
    """The process group of all ranks, over the interface that has `address`."""
    os.environ.update(_variables(place, address))
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        backend = "nccl"
    distributed.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.ranks, timeout=timedelta(seconds=COLLECTIVE_S)
    )
    log.info("rank %d of %d: %s over %s", place.rank, place.ranks, backend, os.environ["GLOO_SOCKET_IFNAME"])


def _variables(place: Place, address: str) -> dict[str, str]:
    """All that DeepSpeed looks for: where one is missing it asks MPI, and then the name service."""
    interface = interface_of(address)
    return {
        "RANK": str(place.rank), "WORLD_SIZE": str(place.ranks), "LOCAL_RANK": str(place.local_rank),
        "MASTER_ADDR": address, "MASTER_PORT": "0",
        "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}",
    }  # fmt: skip
