"""The plan as process groups of this machine, in the foreground: start, restart within a budget, end all.

The run's outcome is the coordinator's to say; this file says it only when no coordinator can.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Literal

from prorl_cli.errors import Fenced, UserError
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.budget import RestartBudget
from prorl_cli.slurm.child import Child, adopting_orphans, end_descendants, how_it_ended
from prorl_cli.slurm.plan import Plan, Process
from prorl_cli.spool.members import Outcome, current_attempt, publish_outcome, read_outcome, read_stop
from prorl_cli.spool.tidy import tidy_run

TICK_S = 0.1
"""Between two looks at the children: a restart is noticed at once, at no cost."""

GRACE_S = 15.0
"""From SIGTERM to SIGKILL at the end: a learner needs it to write a checkpoint."""

STOP_SLACK_S = 20.0
"""How much longer than a stop order's deadline the coordinator may take to say the outcome."""

NO_RESTART = UserError.exit_code
"""The exit code that a restart cannot mend: bad input, a full disk."""


def supervise(run: RunDir, attempt: int, plan: Plan, restarts: int, tick: Callable[[], None]) -> Outcome:
    """Run the plan to its outcome. `tick` is called every `TICK_S`; all processes are gone on return."""
    supervisor = _Supervisor(run, attempt, restarts, tick)
    with adopting_orphans():
        try:
            early = supervisor.prepare(plan.prepare) if plan.prepare is not None else None
            return early or supervisor.loop(plan.roles)
        finally:
            supervisor.end()


class _Supervisor:
    def __init__(self, run: RunDir, attempt: int, restarts: int, tick: Callable[[], None]) -> None:
        self._run, self._attempt, self._tick = run, attempt, tick
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
        if child.code:
            return self._conclude("failed", _failure(child))
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
        """SIGTERM, a grace, SIGKILL; then whatever is left below this process."""
        for child in self._children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while any(child.code is None for child in self._children) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        for child in self._children:
            child.signal(signal.SIGKILL)
        end_descendants()
        if current_attempt(self._run) == self._attempt:
            tidy_run(self._run)
        for child in self._children:
            if child.code is not None:
                child.bury()

    def _start(self, process: Process) -> Child:
        child = Child(self._run, self._attempt, process)
        self._children.append(child)
        return child

    def _pause(self) -> None:
        self._tick()
        time.sleep(TICK_S)

    def _replace(self, child: Child) -> Outcome | None:
        """Restart a role that ended, or say why the run ends."""
        if (outcome := read_outcome(self._run, self._attempt)) is not None:
            return outcome
        if child.code == Fenced.exit_code:
            raise Fenced(f"a newer attempt of {self._run.root} has taken over; this one ends")
        if child.code == NO_RESTART or not self._budget.spend(child.process.name, time.monotonic()):
            return self._conclude("failed", _failure(child))
        self._start(child.process)
        return None

    def _stop_overdue(self) -> bool:
        order = read_stop(self._run, self._attempt)
        if order is None:
            return False
        self._stop_seen = self._stop_seen or time.monotonic()
        return time.monotonic() - self._stop_seen > order.deadline_s + STOP_SLACK_S

    def _conclude(self, state: Literal["failed", "stopped"], reason: str) -> Outcome:
        return publish_outcome(self._run, self._attempt, Outcome(state=state, reason=reason, step=_step(self._run)))


def _failure(child: Child) -> str:
    return f"{child.process.name} {how_it_ended(child.code)}; its last lines:\n{child.last_words()}"


def _step(run: RunDir) -> int:
    return max(run.weight_folders(), default=0)
