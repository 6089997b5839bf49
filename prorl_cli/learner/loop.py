"""The learner as a process: waits for manifests, lets the walk do each in its own thread, rings, records, ends.

Heartbeats and the doorbell stay alive while a step trains. Decides nothing about training. Called by `__main__`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from prorl_cli.learner.follower import own_place
from prorl_cli.learner.trainer import Interrupted, Trainer
from prorl_cli.learner.verdicts import deaths
from prorl_cli.learner.walk import Walk
from prorl_cli.role import Role
from prorl_cli.spool.members import read_endpoints, read_obituaries
from prorl_cli.spool.steps import last_position
from prorl_cli.spool.weights import latest_weights

T = TypeVar("T")

POLL_S = 1.0
"""Between two looks at the step log when no doorbell rings."""

GRACE_S = 3.0
"""A step that is training when the stop comes may take this much longer; then it is abandoned and replayed later."""


async def live(role: Role) -> None:
    """The body of the role."""
    learner = Learner(role)
    try:
        await learner.run()
    finally:
        learner.close()


class Learner:
    """Shell around a `Walk`: one thread for everything that blocks."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="train")
        self._abandoned = threading.Event()
        self._stop_at = float("inf")
        self._trainer: Trainer | None = None
        self._walk: Walk

    async def run(self) -> None:
        """Until the role is told to stop; a clean stop leaves a checkpoint."""
        await self._role.serve([])
        self._role.hear("coordinator")
        self._role.spawn(self._watch_stop())
        try:
            with self._role.waiting("its ranks"):
                trainer = self._trainer = await self._do(self._make_trainer)
        except Interrupted as error:
            self._role.log.info("%s", error)
            return
        if not await self._until("weights 000000", lambda: latest_weights(self._role.run) >= 0):
            return
        self._walk = await self._do(lambda: self._prepare(trainer))
        try:
            while not self._role.stopping.is_set():
                await self._next()
        except Interrupted as error:
            self._role.log.info("%s", error)
        await self._do(self._walk.checkpoint)

    def close(self) -> None:
        """Give up whatever still trains and end the thread."""
        self._abandoned.set()
        self._thread.shutdown(wait=True)
        if self._trainer is not None:
            self._trainer.close()

    async def _watch_stop(self) -> None:
        await self._role.stopping.wait()
        self._stop_at = time.monotonic() + GRACE_S

    def _halted(self) -> bool:
        return self._abandoned.is_set() or time.monotonic() > self._stop_at

    async def _do(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _make_trainer(self) -> Trainer:
        role = self._role
        here = own_place(role.recipe)
        if role.recipe.learner.backend == "torch":
            from prorl_cli.learner.torch_trainer import TorchTrainer

            return TorchTrainer(role.recipe)
        from prorl_cli.learner.deepspeed_trainer import lead

        return lead(role.run, role.recipe, role.attempt, here, self._halted)

    def _prepare(self, trainer: Trainer) -> Walk:
        role = self._role
        died = deaths(read_endpoints(role.run), read_obituaries(role.run), role.name)
        walk = Walk(
            role.run, role.recipe, trainer,
            name=role.name, deaths=died, fence=role.fence, halted=self._halted,
        )  # fmt: skip
        walk.begin()
        return walk

    async def _until(self, what: str, ready: Callable[[], bool]) -> bool:
        """Wait under a name until `ready`; False when told to stop first."""
        with self._role.waiting(what):
            while not (found := ready()) and not self._role.stopping.is_set():
                await self._role.nap(POLL_S)
        return found

    async def _next(self) -> None:
        position = self._walk.progress.position + 1
        since = time.monotonic()
        self._role.announce(state="idle")
        if not await self._until(f"a manifest (step {position})", lambda: last_position(self._role.run) >= position):
            return
        waited_s = time.monotonic() - since
        # on disk before its records are touched: if they kill this process, the next one counts it
        await self._role.announce_now(state="training", step=position)
        with self._role.busy():
            row = await self._do(lambda: self._walk.take(position))
            self._role.doorbell.ring()
            self._role.announce(version=self._walk.progress.position)
            self._record(row, waited_s)
            loaded = {peer.version for peer in self._role.endpoints("engine")}
            await self._do(lambda: self._walk.tidy(loaded))

    def _record(self, row: dict[str, Any], waited_s: float) -> None:
        kind = "step" if row["outcome"] == "step" else row["outcome"]
        self._role.metrics.add(kind, **row, waited_s=waited_s)
        self._role.log.info("position %d: %s in %.2f s", row["step"], row["outcome"], row.get("step_s", 0.0))
