"""One rollout worker on a node of its own: joins whatever attempt is current, leaves when no job of the run is left.

It says nothing about the run's outcome, and its end is no failure of the run: the coordinator gives what the worker had
to others. Called by `python -m prorl_cli.slurm`.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import suppress

from prorl_cli.errors import Fenced, ProrlError, UserError
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attempt import read_resolved
from prorl_cli.slurm.budget import RestartBudget
from prorl_cli.slurm.chain import stopped_by_user
from prorl_cli.slurm.child import Child, adopting_orphans, end_descendants, how_it_ended
from prorl_cli.slurm.commands import SlurmError
from prorl_cli.slurm.plan import Process, satellite_plan
from prorl_cli.slurm.queued import held
from prorl_cli.slurm.script import step_command
from prorl_cli.slurm.submit import Request
from prorl_cli.slurm.supervisor import GRACE_S
from prorl_cli.slurm.told import Told
from prorl_cli.spool.members import current_attempt, read_endpoints, read_outcome

TICK_S = 2.0
"""Between two looks at the worker and at the run's files: many satellites share that filesystem."""

END_TICK_S = 0.2

ASK_S = 15.0
"""Between two questions to the controller while there is nothing to join."""

PATIENCE_S = 600.0
"""How long a controller may be silent before a satellite with nothing to join gives its node back."""

DRAIN_SLACK_S = 10.0
"""How much longer than its deadline a drain may take to be announced."""

FINAL = ("done", "failed", "starved")

log = logging.getLogger("satellite")


def run_satellite(run: RunDir, recipe: Recipe, request: Request, told: Told) -> int:
    """Serve one attempt after another; returns the exit code of the job."""
    assert request.satellite is not None
    node = _Satellite(run, recipe, request.token, satellite_plan(recipe, request.satellite).roles[0], told)
    served = 0
    with adopting_orphans():
        while (attempt := node.await_attempt(served)) is not None:
            log.info("joins attempt %d of %s", attempt, run.root)
            node.serve(attempt)
            served = attempt
    log.info("leaves")
    return 0


class _Satellite:
    def __init__(self, run: RunDir, recipe: Recipe, token: str, process: Process, told: Told) -> None:
        self._run, self._recipe, self._process, self._told = run, recipe, process, told
        self._command = step_command(run, token, process)
        self._budget = RestartBudget(recipe.cluster.restarts)
        self._drain_until: float | None = None

    @property
    def _leaving(self) -> bool:
        return self._told.end or self._told.drain

    def await_attempt(self, served: int) -> int | None:
        """An attempt behind `served` that is under way; None when there is nothing more to do here."""
        patient_until = time.monotonic() + PATIENCE_S
        ask = time.monotonic() + ASK_S
        while not self._leaving:
            newest = current_attempt(self._run)
            outcome = read_outcome(self._run, newest)
            if newest > served and outcome is None and read_resolved(self._run, newest) is not None:
                return newest
            if outcome is not None and (outcome.state in FINAL or stopped_by_user(self._run, newest)):
                return None
            if time.monotonic() > ask:
                ask = time.monotonic() + ASK_S
                patient_until = self._patience(patient_until)
                if time.monotonic() > patient_until:
                    return None
            time.sleep(TICK_S)
        return None

    def _patience(self, until: float) -> float:
        """There is time as long as a job is queued or runs that could begin an attempt."""
        try:
            jobs = [found for found in held(self._run) if found.job.satellite is None]
        except SlurmError as error:
            log.warning("Slurm cannot be asked for the run's job: %s", error)
            return until
        return time.monotonic() + PATIENCE_S if jobs else 0.0

    def serve(self, attempt: int) -> None:
        """Keep the worker running until the attempt is over or this node is wanted back."""
        child = self._start(attempt)
        try:
            while not self._over(attempt, child):
                if child.code is not None:
                    child.bury()
                    if child.code == Fenced.exit_code:
                        return
                    self._judge(child)
                    child = self._start(attempt)
                time.sleep(TICK_S)
        finally:
            self._end(child)

    def _start(self, attempt: int) -> Child:
        return Child(self._run, attempt, self._process, self._command, os.environ)

    def _judge(self, child: Child) -> None:
        what = f"{self._process.name} {how_it_ended(child.code)}; {child.log} ends:\n{child.last_words()}"
        if child.code == UserError.exit_code or not self._budget.spend(self._process.name, time.monotonic()):
            raise ProrlError(what)
        log.warning("%s", what)

    def _over(self, attempt: int, child: Child) -> bool:
        if self._told.end or read_outcome(self._run, attempt) is not None or current_attempt(self._run) > attempt:
            return True
        return self._told.drain and self._drained(attempt, child)

    def _drained(self, attempt: int, child: Child) -> bool:
        """Whether the worker has finished what it may finish; the first call asks it to."""
        if self._drain_until is None:
            log.info("the time limit is near: draining for at most %.0f s", self._recipe.cluster.drain)
            self._drain_until = time.monotonic() + self._recipe.cluster.drain + DRAIN_SLACK_S
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGUSR2)  # the worker alone: its boxes would die of it
        mine = (peer for peer in read_endpoints(self._run, attempt) if child.owns(peer))
        return (
            child.code is not None
            or time.monotonic() > self._drain_until
            or any(peer.state == "drained" for peer in mine)
        )

    def _end(self, child: Child) -> None:
        child.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while child.code is None and time.monotonic() < deadline:
            time.sleep(END_TICK_S)
        child.signal(signal.SIGKILL)
        end_descendants()
        child.bury()
