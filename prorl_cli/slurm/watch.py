"""What the supervisor of a job minds beside its processes: Slurm's signals, satellites, and the job's own log."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from prorl_cli.errors import ProrlError
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm import chain
from prorl_cli.slurm.child import Child, how_it_ended
from prorl_cli.slurm.commands import SlurmError
from prorl_cli.slurm.plan import has_satellites
from prorl_cli.slurm.queued import cancel_waiting, submit_missing_satellites
from prorl_cli.slurm.supervisor import Watch
from prorl_cli.slurm.told import Told
from prorl_cli.spool.members import Outcome, StopOrder, order_stop, publish_outcome, read_endpoints, read_stop

READY_S = 120.0
"""A role that has not written its endpoint by then is named: its node may not see the run directory."""

LOOK_S = 60.0
"""Between two questions to the controller about satellites, and between two lines of progress."""

ONE_SHOT = "warmstart"
"""The room whose process never announces itself."""

log = logging.getLogger("job")


class ToldToEnd(ProrlError):
    """Slurm ends the job."""


class JobWatch(Watch):
    """Obeys Slurm, keeps satellites queued, and says what happens where users look first."""

    def __init__(self, run: RunDir, attempt: int, recipe: Recipe, told: Told) -> None:
        self.recipe = recipe
        self._run, self._attempt, self._told = run, attempt, told
        self._looked = -LOOK_S
        self._late: set[str] = set()
        self._draining = False

    def tick(self, running: Sequence[Child]) -> None:
        """Signals at once, the rest now and then."""
        if self._told.end:
            raise ToldToEnd(self._say_stopped())
        if self._told.drain and not self._draining:
            self._drain()
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            log.info("step %d of %d", max(self._run.weight_folders(), default=0), self.recipe.learner.steps)
            self._name_the_late(running)
            self._keep_satellites()

    def ended(self, child: Child, restarted: bool) -> None:
        """Its last lines."""
        how, what = how_it_ended(child.code), "it is started again" if restarted else "the run ends"
        log.warning("%s %s; %s; %s ends:\n%s", child.process.name, how, what, child.log, child.last_words())

    def close(self, outcome: Outcome) -> None:
        """What waits in the queue for a run that does not go on is cancelled."""
        if outcome.state == "stopped" and not chain.stopped_by_user(self._run, self._attempt):
            return
        try:
            if cancelled := cancel_waiting(self._run):
                log.info("cancelled what waited in the queue: %s", ", ".join(map(str, cancelled)))
        except SlurmError as error:
            log.warning("what waits in the queue could not be cancelled; it will end by itself: %s", error)

    def _say_stopped(self) -> str:
        """At once: Slurm may kill this process before all roles have ended."""
        step = max(self._run.weight_folders(), default=0)
        return publish_outcome(
            self._run, self._attempt, Outcome(state="stopped", reason=chain.TOLD_TO_END, step=step)
        ).reason

    def _drain(self) -> None:
        self._draining = True
        deadline = self.recipe.cluster.drain
        log.info("%s: draining for at most %.0f s", chain.LIMIT, deadline)
        if read_stop(self._run, self._attempt) is None:
            order_stop(self._run, self._attempt, StopOrder(mode="drain", deadline_s=deadline, reason=chain.LIMIT))

    def _keep_satellites(self) -> None:
        if not has_satellites(self.recipe) or self._draining:
            return
        try:
            for job_id in submit_missing_satellites(self._run, self.recipe):
                log.info("asked for a rollout node: job %d", job_id)
        except SlurmError as error:
            log.warning("rollout nodes could not be asked for: %s", error)

    def _name_the_late(self, running: Sequence[Child]) -> None:
        there = {endpoint.slot for endpoint in read_endpoints(self._run, self._attempt)}
        for child in running:
            name, age = child.process.name, time.monotonic() - child.started
            if age > READY_S and child.process.room != ONE_SHOT and name not in there | self._late:
                self._late.add(name)
                log.warning(
                    "%s has not announced itself for %.0f s: does its node see %s? %s ends:\n%s",
                    name, age, self._run.root, child.log, child.last_words(),
                )  # fmt: skip
