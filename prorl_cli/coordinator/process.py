"""The coordinator at work: reads the files, lets the machine decide, carries the decision out, rings the doorbell.

Every publication is fenced. Whoever loses a position, or finds one that somebody else published, rebuilds from the
files. Blocking reads and writes happen in a thread, so that heartbeats and the doorbell go on while a disk is slow.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from itertools import chain

from prorl_cli import fsio
from prorl_cli.coordinator.machine import Decision, Facts, Machine, Origin
from prorl_cli.coordinator.stored import last_manifest
from prorl_cli.coordinator.watchdog import Watchdog
from prorl_cli.role import Role
from prorl_cli.spool.evals import Evaluation, evaluations, publish_evaluation
from prorl_cli.spool.members import (
    Outcome,
    StopOrder,
    attempt_of,
    publish_outcome,
    read_endpoints,
    read_obituaries,
    read_outcome,
    read_restore,
    read_stop,
)
from prorl_cli.spool.requests import RequestWriter, all_requests
from prorl_cli.spool.steps import last_position, publish_step
from prorl_cli.spool.trajectories import Entry, TrajectoryFollower
from prorl_cli.spool.weights import latest_weights
from prorl_cli.trajectory import Drain, Request, StepManifest

POLL_S = 0.5
"""Between two looks at the files when nobody rings, and between two listings of endpoints and orders."""


class Coordinator:
    """One coordinator process; `tick` is called from one thread at a time."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._run = role.run
        self._watchdog = Watchdog(role.name, role.attempt)
        self._writers: dict[str, RequestWriter] = {}
        self._looked = -POLL_S
        self._stop: StopOrder | None = None
        self._drain_until: float | None = None
        self._drained: set[str] = set()
        self._dead: frozenset[str] = frozenset()
        self._bury()
        self._rebuild()

    def tick(self) -> Decision:
        """Look, decide, carry out."""
        now = time.monotonic()
        if now - self._looked >= POLL_S:
            self._look(now)
        for entries in self._follower.chunks(self._dead):
            for entry in entries:
                self._machine.take(self._tallied(entry))
        asked = self._machine.load()
        facts = Facts(
            now=now, weights=latest_weights(self._run), alive=self._watchdog.alive, gone=self._watchdog.gone(asked)
        )
        self.version = facts.weights
        decision = self._stopping(facts, self._stop) if self._stop else self._machine.decide(facts)
        self._send(decision.sends)
        self._publish(decision)
        return decision

    def facts(self) -> dict[str, float | int | str]:
        """What status shows of the run's groups and members, over all attempts."""
        batcher = self._machine.batcher
        failed = {f"failed_{name}": count for name, count in sorted(self._failed.items())}
        dropped = {f"dropped_{name.replace(':', '_')}": count for name, count in sorted(batcher.lost.items())}
        return {
            "admitted": batcher.next, "settled": batcher.head, "in_flight": sum(self._machine.load().values()),
            "finished": self._finished, "failed": self._failed.total(), **failed, **dropped,
        }  # fmt: skip

    @property
    def step(self) -> int:
        """The last published position."""
        return self._machine.batcher.position

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def _rebuild(self) -> None:
        """The machine anew. The manifest is read first: what the logs hold later than it is only more."""
        run, role = self._run, self._role
        last = last_manifest(run)
        evaluated = frozenset(evaluations(run))
        restore = read_restore(run, role.attempt)
        self._follower = TrajectoryFollower(run)
        self._finished, self._failed = 0, Counter[str]()
        entries = chain.from_iterable(self._follower.chunks(self._dead))
        self._machine = Machine(
            role.recipe,
            Origin(
                name=role.name, attempt=role.attempt, last=last, requests=all_requests(run),
                entries=map(self._tallied, entries), evaluated=evaluated,
                restore_to=-1 if restore is None else restore,
            ),
        )  # fmt: skip
        self.version = latest_weights(run)
        role.log.info("rebuilt: position %d, groups %d to %d", self.step, *self._machine.span)

    def _tallied(self, entry: Entry) -> Entry:
        if entry.error_class is None:
            self._finished += 1
        else:
            self._failed[entry.error_class] += 1
        return entry

    def _look(self, now: float) -> None:
        """The slower facts: who lives, what was ordered, what a rival published."""
        self._looked = now
        self._bury()
        self._watchdog.observe(
            now, read_endpoints(self._run, self._role.attempt), self._obituaries, self._machine.load()
        )
        self._stop = read_stop(self._run, self._role.attempt)
        if last_position(self._run) > self.step:
            self._rebuild()

    def _bury(self) -> None:
        """Logs of writers that are certainly dead are read to their last intact record, and then no more; what was
        written to them is closed."""
        self._obituaries = frozenset(read_obituaries(self._run))
        for worker in self._writers.keys() & self._obituaries:
            self._writers.pop(worker).close()
        writers = fsio.names(self._run.trajectories)
        # a stray file's name is no incarnation's
        older = {name for name in writers if (attempt_of(name) or self._role.attempt) < self._role.attempt}
        self._dead = self._obituaries | older

    # ── carrying out ──────────────────────────────────────────────────────────────────────────────────────

    def _send(self, sends: tuple[tuple[str, Request], ...]) -> None:
        if not sends:
            return
        self._role.fence()
        for worker, request in sends:
            if worker not in self._writers:
                self._writers[worker] = RequestWriter(self._run, worker, self._role.name)
            self._writers[worker].append(request)
        for worker in {worker for worker, _ in sends}:
            self._writers[worker].commit()

    def _publish(self, decision: Decision) -> None:
        if decision.publishes:
            self._role.fence()
        if decision.evaluation is not None:
            self._publish_evaluation(decision.evaluation)
        if decision.step is not None:
            self._publish_step(decision.step)
        if decision.outcome is not None:
            publish_outcome(self._run, self._role.attempt, decision.outcome)

    def _publish_step(self, manifest: StepManifest) -> None:
        if publish_step(self._run, manifest) != manifest:
            self._role.log.warning("position %d is another coordinator's", manifest.position)
            self._rebuild()
            return
        account = self._machine.batcher.account()
        wait_s = round(self._machine.wait_s, 3)
        self._role.metrics.add("step_published", step=manifest.position, **account, wait_s=wait_s)
        self._role.log.info("position %d: %s", manifest.position, account)
        self._machine.published(manifest)

    def _publish_evaluation(self, evaluation: Evaluation) -> None:
        stands = publish_evaluation(self._run, evaluation)
        if stands == evaluation:
            fields = {name: getattr(evaluation, name) for name in evaluation.__struct_fields__}
            self._role.metrics.add("evaluation", **fields)
            self._role.log.info("weights %d: pass@1 %.3f ± %.3f", stands.version, stands.pass_at_1, stands.stderr)
        self._machine.evaluated()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────

    def _stopping(self, facts: Facts, order: StopOrder) -> Decision:
        """`now` ends at once; `drain` when what runs has finished and the last step is trained, or at its deadline."""
        if order.mode == "now":
            return self._stopped("stopped at once")
        if self._drain_until is None:
            self._drain_until = facts.now + order.deadline_s
        waiting = self._machine.draining(facts)
        left = max(0.0, self._drain_until - facts.now)
        if untold := facts.alive - self._drained:
            self._drained |= untold
            orders = tuple((worker, Drain(deadline_s=left, reason="stop")) for worker in sorted(untold))
            return Decision(sends=orders, waiting=waiting or "drain")
        if not waiting:
            return self._stopped("drained")
        if not left:
            return self._stopped(f"the drain's deadline passed while waiting for {waiting}")
        return Decision(waiting=waiting)

    def _stopped(self, why: str) -> Decision:
        return Decision(outcome=Outcome(state="stopped", reason=why, step=self.step))


async def body(role: Role) -> None:
    """Until the outcome is published, or the process is told to stop."""
    if read_outcome(role.run, role.attempt) is not None:
        return
    await role.serve([])
    coordinator = await asyncio.to_thread(Coordinator, role)
    role.hear("rollout", "learner")
    named = ""
    with ExitStack() as wait:
        while not role.stopping.is_set():
            with role.busy():
                decision = await asyncio.to_thread(coordinator.tick)
            role.announce(state="running", step=coordinator.step, version=coordinator.version, **coordinator.facts())
            if decision.sends or decision.publishes:
                role.doorbell.ring()
            if decision.outcome is not None:
                return
            if decision.publishes:
                continue
            if decision.waiting != named:  # one wait lasts over many naps, so that status shows how long
                named = decision.waiting
                wait.close()
                wait.enter_context(role.waiting(named))
            await role.nap(POLL_S)
