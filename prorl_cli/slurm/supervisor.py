"""The plan as processes, whoever starts them: start, restart within a budget, end all.

The run's outcome is the coordinator's to say; this file says it only when no coordinator can. A `Starter` starts and
ends processes: `child.Children` here, `step.Steps` on the nodes of a job. A `Watch` looks on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal, Protocol

from prorl_cli.errors import Fenced, UserError
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.budget import RestartBudget
from prorl_cli.slurm.child import Child, Children, adopting_orphans, how_it_ended
from prorl_cli.slurm.plan import Plan, Process
from prorl_cli.spool.members import Outcome, current_attempt, publish_outcome, read_outcome, read_stop
from prorl_cli.spool.tidy import tidy_run

GRACE_S = 30.0
"""From the request to end until the kill, as Slurm's own: a learner writes a checkpoint, an engine drains."""

STOP_SLACK_S = 20.0
"""How much longer than a stop order's deadline the coordinator may take to say the outcome."""

NO_RESTART = UserError.exit_code
"""The exit code that a restart cannot mend: bad input, a full disk."""


class Starter(Protocol):
    """One way to run a process."""

    tick_s: float
    """Between two looks at the processes and at the run's files."""

    def start(self, process: Process) -> Child:
        """Start it."""

    def terminate(self, children: Sequence[Child]) -> None:
        """Ask all of them for an orderly end."""

    def kill(self, children: Sequence[Child]) -> None:
        """End all of them, and what they started."""


class Watch:
    """Looks on; what a subclass raises ends the attempt."""

    def tick(self, running: Sequence[Child]) -> None:
        """Called at every tick."""

    def ended(self, child: Child, restarted: bool) -> None:
        """A process ended although the run goes on."""


def supervise(
    run: RunDir, attempt: int, plan: Plan, restarts: int, watch: Watch, starter: Starter | None = None
) -> Outcome:
    """Run the plan to its outcome; all its processes are gone on return."""
    supervisor = _Supervisor(run, attempt, restarts, watch, starter or Children(run, attempt))
    with adopting_orphans():
        try:
            early = supervisor.prepare(plan.prepare) if plan.prepare is not None else None
            return early or supervisor.loop(plan.roles)
        finally:
            supervisor.end()


class _Supervisor:
    def __init__(self, run: RunDir, attempt: int, restarts: int, watch: Watch, starter: Starter) -> None:
        self._run, self._attempt, self._watch, self._starter = run, attempt, watch, starter
        self._budget = RestartBudget(restarts)
        self._children: list[Child] = []
        self._stop_seen: float | None = None

    def prepare(self, process: Process) -> Outcome | None:
        """Run the one-shot process; an `Outcome` when the run ends here."""
        child = self._start(process)
        while child.code is None:
            if read_stop(self._run, self._attempt) is not None:
                return self._conclude("stopped", "stopped before the first step")
            self._pause()
        self._children.remove(child)
        if child.code == Fenced.exit_code:
            raise _fenced(self._run)
        if child.code:
            return self._fail(child)
        return None

    def loop(self, roles: tuple[Process, ...]) -> Outcome:
        """Keep all roles running until the outcome is there."""
        for role in roles:
            self._start(role)
        while (outcome := read_outcome(self._run, self._attempt)) is None:
            for child in [child for child in self._children if child.code is not None]:
                self._children.remove(child)
                child.bury()
                if (failed := self._replace(child)) is not None:
                    return failed
            if self._stop_overdue():
                return self._conclude("stopped", "the coordinator did not finish the stop in time")
            self._pause()
        return outcome

    def end(self) -> None:
        """Ask, a grace, kill; then the obituaries of all."""
        self._starter.terminate(self._children)
        deadline = time.monotonic() + GRACE_S
        while any(child.code is None for child in self._children) and time.monotonic() < deadline:
            time.sleep(self._starter.tick_s)
        self._starter.kill(self._children)
        if current_attempt(self._run) == self._attempt:
            tidy_run(self._run)
        for child in self._children:
            if child.code is not None:
                child.bury()

    def _start(self, process: Process) -> Child:
        child = self._starter.start(process)
        self._children.append(child)
        return child

    def _pause(self) -> None:
        self._watch.tick(self._children)
        time.sleep(self._starter.tick_s)

    def _replace(self, child: Child) -> Outcome | None:
        """Restart a role that ended, or say why the run ends."""
        if (outcome := read_outcome(self._run, self._attempt)) is not None:
            return outcome
        if child.code == Fenced.exit_code:
            raise _fenced(self._run)
        if child.code == NO_RESTART or not self._budget.spend(child.process.name, time.monotonic()):
            return self._fail(child)
        self._watch.ended(child, restarted=True)
        self._start(child.process)
        return None

    def _stop_overdue(self) -> bool:
        order = read_stop(self._run, self._attempt)
        if order is None:
            return False
        self._stop_seen = self._stop_seen or time.monotonic()
        return time.monotonic() - self._stop_seen > order.deadline_s + STOP_SLACK_S

    def _fail(self, child: Child) -> Outcome:
        self._watch.ended(child, restarted=False)
        return self._conclude(
            "failed", f"{child.process.name} {how_it_ended(child.code)}; its last lines:\n{child.last_words()}"
        )

    def _conclude(self, state: Literal["failed", "stopped"], reason: str) -> Outcome:
        step = max(self._run.weight_folders(), default=0)
        return publish_outcome(self._run, self._attempt, Outcome(state=state, reason=reason, step=step))


def _fenced(run: RunDir) -> Fenced:
    return Fenced(f"a newer attempt of {run.root} has taken over; this one ends")
