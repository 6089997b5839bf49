"""The three stages of a rollout, INIT → RUN → EVAL, each with slots and a clock of its own.

Knows neither HTTP nor logs: whoever submits gets each result by a callback, exactly once, unless it was cancelled.
A member is known by (purpose, group, member, try); submitting it again changes nothing. Rules:

- A stage's clock runs only while the stage works: not while the member waits for a slot, for a lease or for a verifier,
  nor while a box is replayed in place of one that died.
- A member's box is closed after RUN, or after EVAL where the handler keeps it, however the member ends.
- An `InfraError` keeps its class; anything else that a handler raises is `task`; a clock that ran out is `init` in
  INIT, `verifier` in EVAL. In RUN it is the policy's doing and is scored with what there is, unless the turn it cut
  had been without an answer for half of the clock: then an engine hung, and that is `engine`.
- A cancelled member ends at once, its box and its generation with it, and leaves no result: whoever cancelled it has
  already struck it off.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from prorl_cli.agent import Episode
from prorl_cli.errors import InfraError, ProrlError, boundary
from prorl_cli.recipe.schema import Rollout
from prorl_cli.rollout.clock import Clocks
from prorl_cli.tasks import Handler, Job, Score
from prorl_cli.trajectory import ErrorClass, Purpose, StopReason, Timings

GRACE_S = 5.0
"""What a handler gets beyond the RUN clock that its job carries, to hand over what there is."""
HUNG_SHARE = 0.5
"""Of the RUN clock: a turn without an answer for longer is the engine's failure."""
CLOSE_S = 5.0
"""What cancelled members get to end; what takes longer ends with the process."""

SEEN = 65536
"""Members remembered as taken on: a request is read twice, if at all, soon after the first time."""

_log = logging.getLogger(__name__)


class Stage(StrEnum):
    """Where a member is."""

    INIT = "init"
    """The task is fetched and set up."""
    RUN = "run"
    """The policy acts."""
    EVAL = "eval"
    """The outcome is scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One try of one member of one group."""

    purpose: Purpose
    group: int
    member: int
    tried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What to do for a member. `prepare` makes its job (in INIT; the policy in it reports its turns to the clocks);
    `finished` gets the result."""

    key: Key
    handler: Handler
    prepare: Callable[[Clocks], Awaitable[Job]]
    finished: Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a member: an episode and a score, or an error class and why (and the episode if there was one)."""

    key: Key
    episode: Episode | None
    score: Score | None
    error_class: ErrorClass | None
    error: str
    timings: Timings


@dataclass(slots=True, kw_only=True)
class _Pool:
    slots: asyncio.Semaphore
    limit_s: float
    queued: int = 0
    running: int = 0


@dataclass(slots=True)
class _Trace:
    """What is known of a member so far."""

    work: Work
    clocks: Clocks = field(default_factory=Clocks)
    stage: Stage = Stage.INIT
    slots_s: float = 0.0
    """Waited for slots."""
    spent_s: dict[Stage, float] = field(default_factory=dict)
    leases_s: float = 0.0
    """Waited for leases within RUN."""
    job: Job | None = None
    episode: Episode | None = None


class Pipeline:
    """Runs members side by side, in one event loop. `limits` gives every stage's slots and clock."""

    def __init__(self, limits: Rollout) -> None:
        stages = {Stage.INIT: limits.init, Stage.RUN: limits.run, Stage.EVAL: limits.eval}
        self._pools = {
            stage: _Pool(slots=asyncio.Semaphore(given.slots), limit_s=given.timeout) for stage, given in stages.items()
        }
        self._seen: OrderedDict[Key, None] = OrderedDict()
        self._begun: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._draining = False

    def submit(self, work: Work) -> bool:
        """Take a member on; False when it has been seen before, or when nothing new is started any more."""
        if self._draining or work.key in self._seen or work.key in self._tasks:
            return False
        self._seen[work.key] = None
        while len(self._seen) > SEEN:
            self._seen.popitem(last=False)
        task = self._tasks[work.key] = asyncio.create_task(self._member(_Trace(work)))
        task.add_done_callback(partial(self._ended, work.key))
        return True

    def cancel(self, purpose: Purpose, group: int, members: Iterable[int]) -> None:
        """End these members, whichever try they are at; finished ones are not touched."""
        named = set(members)
        for key, task in list(self._tasks.items()):
            if (key.purpose, key.group) == (purpose, group) and key.member in named:
                task.cancel()

    async def drain(self, deadline_s: float) -> None:
        """Start nothing new, finish what has begun, and cancel what has not finished by the deadline."""
        self._draining = True
        for key, task in list(self._tasks.items()):
            if key not in self._begun:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=deadline_s)
        await self.close()

    async def close(self) -> None:
        """Cancel everything, and wait for boxes and generations to end."""
        self._draining = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=CLOSE_S)
            if stubborn:
                _log.error("%d members did not end within %g s of being cancelled", len(stubborn), CLOSE_S)

    @property
    def unfinished(self) -> int:
        """Members taken on and not ended."""
        return len(self._tasks)

    def counts(self) -> dict[str, int]:
        """Queued and running members of each stage."""
        queued = {f"{stage}_queued": pool.queued for stage, pool in self._pools.items()}
        return queued | {f"{stage}_running": pool.running for stage, pool in self._pools.items()}

    # ── one member ────────────────────────────────────────────────────────────────────────────────────────

    async def _member(self, trace: _Trace) -> None:
        score, failure = None, None
        try:
            with boundary(ErrorClass.INTERNAL, "rollout pipeline"):
                score = await self._stages(trace)
        except ProrlError as error:
            failure = error
        trace.work.finished(_result(trace, score, failure))

    async def _stages(self, trace: _Trace) -> Score:
        try:
            return await self._one_after_the_other(trace)
        finally:
            if trace.job is not None:
                await trace.job.tools.close()

    async def _one_after_the_other(self, trace: _Trace) -> Score:
        handler = trace.work.handler
        async with self._stage(Stage.INIT, trace):
            trace.job = job = await trace.work.prepare(trace.clocks)
            await handler.init(job)
        async with self._stage(Stage.RUN, trace):
            trace.episode = episode = await _run(handler, job, trace)
            self._check_timeout(trace)
        async with self._stage(Stage.EVAL, trace):
            return _sound(await handler.eval(job, episode))

    @asynccontextmanager
    async def _stage(self, stage: Stage, trace: _Trace) -> AsyncIterator[None]:
        """A slot, the clock, and the handler's callback for whatever ends the stage early, cancellation included."""
        pool = self._pools[stage]
        trace.stage = stage
        try:
            async with self._slot(pool, trace), self._clock(stage, pool.limit_s, trace):
                with boundary(ErrorClass.TASK, f"{stage.name} stage"):
                    yield
        except BaseException as error:
            _call_back(trace, error)
            raise

    @asynccontextmanager
    async def _clock(self, stage: Stage, limit_s: float, trace: _Trace) -> AsyncIterator[None]:
        clock = trace.clocks.start(limit_s + (GRACE_S if stage is Stage.RUN else 0.0))
        try:
            async with clock:
                yield
        except TimeoutError:
            # A handler's own timeouts have been classified inside: this is the clock's.
            raise _overdue(stage, limit_s, trace) from None
        finally:
            trace.spent_s[stage] = clock.spent_s

    @asynccontextmanager
    async def _slot(self, pool: _Pool, trace: _Trace) -> AsyncIterator[None]:
        started = time.monotonic()
        pool.queued += 1
        try:
            await pool.slots.acquire()
        finally:
            pool.queued -= 1
            trace.slots_s += time.monotonic() - started
        pool.running += 1
        self._begun.add(trace.work.key)
        try:
            yield
        finally:
            pool.running -= 1
            pool.slots.release()

    def _check_timeout(self, trace: _Trace) -> None:
        """An episode that its clock ended is the policy's doing, unless an engine hung."""
        limit_s = self._pools[Stage.RUN].limit_s
        if trace.episode is not None and trace.episode.stop_reason is StopReason.RUN_TIMEOUT and _hung(trace, limit_s):
            raise _overdue(Stage.RUN, limit_s, trace)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key)
        self._begun.discard(key)
        if not task.cancelled() and (error := task.exception()):
            _log.error("member %s ended without a result", key, exc_info=error)


async def _run(handler: Handler, job: Job, trace: _Trace) -> Episode:
    queued_s = trace.clocks.queued_s
    try:
        episode = await handler.run(job)
        if not isinstance(episode, Episode):
            raise TypeError(f"{type(handler).__name__}.run gave {episode!r}, not an Episode")
        return episode
    finally:
        trace.leases_s = trace.clocks.queued_s - queued_s
        if not handler.keeps_box:
            await job.tools.close()


def _sound(score: Score) -> Score:
    if not isinstance(score, Score) or not all(map(math.isfinite, (score.reward, *score.parts.values()))):
        raise TypeError(f"eval gave {score!r}, not a Score of finite numbers")
    parts = {str(name): float(part) for name, part in score.parts.items()}
    return Score(reward=float(score.reward), parts=parts, verdict=str(score.verdict))


def _call_back(trace: _Trace, error: BaseException) -> None:
    """Tell the handler; what its callback raises is logged, and the first error stands."""
    if trace.job is None:
        return
    handler = trace.work.handler
    callbacks = {Stage.INIT: handler.init_error, Stage.RUN: handler.run_error, Stage.EVAL: handler.eval_error}
    try:
        with boundary(ErrorClass.TASK, f"{trace.stage}_error"):
            callbacks[trace.stage](trace.job, error)
    except ProrlError as second:
        _log.error("%s", second)


def _hung(trace: _Trace, limit_s: float) -> bool:
    return trace.clocks.cut_s >= HUNG_SHARE * limit_s


def _overdue(stage: Stage, limit_s: float, trace: _Trace) -> InfraError:
    text = f"{stage.name} was not done within its {limit_s:g} s"
    if stage is Stage.RUN and _hung(trace, limit_s):
        return InfraError(ErrorClass.ENGINE, f"{text}: no engine answered its last turn for {trace.clocks.cut_s:.1f} s")
    return InfraError(_OVERDUE[stage], text)


_OVERDUE = {Stage.INIT: ErrorClass.INIT, Stage.RUN: ErrorClass.TASK, Stage.EVAL: ErrorClass.VERIFIER}


def _result(trace: _Trace, score: Score | None, failure: ProrlError | None) -> Result:
    spent, episode = trace.spent_s, trace.episode
    timings = Timings(
        queue=trace.slots_s + trace.clocks.queued_s,
        init=spent.get(Stage.INIT, 0.0), run=spent.get(Stage.RUN, 0.0), eval=spent.get(Stage.EVAL, 0.0),
        llm=max(0.0, episode.llm_s - trace.leases_s) if episode else 0.0, tool=episode.tool_s if episode else 0.0,
        replay=trace.job.tools.box.lost_s if trace.job else 0.0,
    )  # fmt: skip
    return Result(
        key=trace.work.key, episode=episode, score=score, timings=timings,
        error_class=_class_of(failure) if failure else None, error=str(failure) if failure else "",
    )  # fmt: skip


def _class_of(failure: ProrlError) -> ErrorClass:
    return ErrorClass(failure.error_class) if isinstance(failure, InfraError) else ErrorClass.TASK
