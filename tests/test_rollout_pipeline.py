"""The three stages: slots, clocks that never charge queueing, error classes, cancellation, draining."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial

import pytest

from prorl_cli.agent import Episode, Limits, TinyRenderer, ToolBox, run_episode
from prorl_cli.engine import Generation
from prorl_cli.errors import InfraError
from prorl_cli.recipe import TaskSpec
from prorl_cli.recipe.schema import Rollout, Stage
from prorl_cli.rollout import Key, Pipeline, Work
from prorl_cli.rollout.member import member_seed
from prorl_cli.tasks import Handler, Item, Job, Score
from prorl_cli.trajectory import ErrorClass, Purpose, StopReason, TaskRef, VersionSpan

END = 1


def limits(init=(8, 10.0), run=(8, 10.0), evaluate=(8, 10.0)):
    def stage(slots, timeout):
        return Stage.model_construct(slots=slots, timeout=timeout)

    return Rollout.model_construct(init=stage(*init), run=stage(*run), eval=stage(*evaluate))


class NoTools(ToolBox):
    """The tool box of episodes that have none; knows whether it was closed."""

    def __init__(self):
        super().__init__(None, (), 1.0)
        self.closed = 0

    async def close(self):
        self.closed = 1


class Scripted(Handler):
    """Each stage takes the seconds that the test says, counts who is in it, and may fail or hang."""

    def __init__(self, seconds=(0.0, 0.0, 0.0), **hooks):
        super().__init__(TaskSpec(domain="math", source="reasoning_gym:chain_sum"))
        self.seconds, self.hooks = dict(zip(("init", "run", "eval"), seconds, strict=True)), hooks
        self.inside = dict.fromkeys(self.seconds, 0)
        self.most = dict.fromkeys(self.seconds, 0)
        self.told = []

    @asynccontextmanager
    async def stage(self, name, job):
        self.inside[name] += 1
        self.most[name] = max(self.most[name], self.inside[name])
        try:
            await asyncio.sleep(self.seconds[name])
            if name in self.hooks:
                await self.hooks[name](job)
            yield
        finally:
            self.inside[name] -= 1

    async def init(self, job):
        async with self.stage("init", job):
            pass

    async def run(self, job):
        async with self.stage("run", job):
            return episode()

    async def eval(self, job, episode):
        async with self.stage("eval", job):
            return Score(reward=1.0, parts={"answer": 1.0})

    def init_error(self, job, error):
        self.told.append(("init", type(error)))

    def run_error(self, job, error):
        self.told.append(("run", type(error)))

    def eval_error(self, job, error):
        self.told.append(("eval", type(error)))


def episode(stop=StopReason.ANSWERED):
    return Episode(sequences=(), tool_calls=(), stop_reason=stop, answer="3", llm_s=0.0, tool_s=0.0)


class Bench:
    """A pipeline, what it gave back, and the jobs that were made for it."""

    def __init__(self, given=None):
        self.pipeline = Pipeline(given or limits())
        self.results = {}
        self.jobs = {}

    def submit(self, handler, *members, group=0, tried=0, policy=None):
        for member in members:
            key = Key(purpose=Purpose.TRAIN, group=group, member=member, tried=tried)
            prepare = partial(self.prepare, key, policy)
            yield self.pipeline.submit(Work(key=key, handler=handler, prepare=prepare, finished=self.finished))

    def add(self, handler, *members, **options):
        assert all(self.submit(handler, *members, **options))

    async def prepare(self, key, policy, clocks):
        self.jobs[key.member] = job = Job(
            ref=TaskRef(task=0, domain="math", index=0),
            item=Item(question="1 + 2", answer="3"),
            seed=7,
            session=str(key),
            policy=policy(clocks) if policy else None,
            renderer=TinyRenderer(),
            tools=NoTools(),
            limits=Limits(
                max_turns=9, max_tokens=1000, seconds=self.pipeline._pools["run"].limit_s, timer=clocks.start
            ),
            verifiers=None,
        )
        return job

    def finished(self, result):
        assert result.key not in self.results, "told twice"
        self.results[result.key] = result

    async def done(self, timeout=10):
        async with asyncio.timeout(timeout):
            while self.pipeline.unfinished:
                await asyncio.sleep(0.005)
        return {key.member: result for key, result in self.results.items()}


def play(scenario):
    return asyncio.run(scenario())


def test_a_member_goes_through_all_three_stages_and_its_box_is_closed():
    async def scenario():
        bench, handler = Bench(), Scripted(seconds=(0.01, 0.02, 0.03))
        bench.add(handler, 0, 1)
        results = await bench.done()
        for member, result in results.items():
            assert (result.error_class, result.score.reward, result.episode.answer) == (None, 1.0, "3")
            assert bench.jobs[member].tools.closed == 1
            timings = result.timings
            assert timings.init >= 0.01 and timings.run >= 0.02 and timings.eval >= 0.03 and timings.queue < 0.5
        assert handler.told == []

    play(scenario)


def test_every_stage_holds_as_many_as_it_has_slots():
    async def scenario():
        bench, handler = Bench(limits((3, 9.0), (2, 9.0), (1, 9.0))), Scripted(seconds=(0.01, 0.01, 0.01))
        bench.add(handler, *range(12))
        assert bench.pipeline.unfinished == 12
        results = await bench.done()
        assert handler.most == {"init": 3, "run": 2, "eval": 1}
        assert len(results) == 12
        assert set(bench.pipeline.counts().values()) == {0}

    play(scenario)


def test_time_in_a_queue_is_recorded_and_never_charged():
    async def scenario():
        bench, handler = Bench(limits((1, 0.4), (1, 0.4), (1, 0.4))), Scripted(seconds=(0.0, 0.15, 0.0))
        bench.add(handler, *range(6))
        results = await bench.done()
        assert [result.error for result in results.values()] == [""] * 6
        assert max(result.timings.queue for result in results.values()) >= 0.7
        assert max(result.timings.run for result in results.values()) < 0.4

    play(scenario)


@pytest.mark.parametrize(
    ("stage", "expected"), [("init", ErrorClass.INIT), ("run", ErrorClass.TASK), ("eval", ErrorClass.VERIFIER)]
)
def test_a_stage_past_its_clock_ends_in_its_own_class_and_tells_the_handler(stage, expected, monkeypatch):
    monkeypatch.setattr("prorl_cli.rollout.pipeline.GRACE_S", 0.1)

    async def scenario():
        bench = Bench(limits(*[(1, 0.1)] * 3))
        handler = Scripted(**{stage: lambda job: asyncio.Event().wait()})
        bench.add(handler, 0)
        result = (await bench.done())[0]
        assert result.error_class == expected and "not done within its 0.1 s" in result.error
        assert result.score is None
        assert handler.told == [(stage, InfraError)]
        assert bench.jobs[0].tools.closed == 1

    play(scenario)


@pytest.mark.parametrize("stage", ["init", "run", "eval"])
def test_what_a_handler_raises_is_its_own_class_or_task_and_fails_only_its_member(stage):
    async def boom(job):
        if "member=0" in job.session:
            raise ZeroDivisionError("scripted")
        if "member=1" in job.session:
            raise InfraError(ErrorClass.SANDBOX, "scripted")
        if "member=2" in job.session:
            raise TimeoutError

    async def scenario():
        bench, handler = Bench(), Scripted(**{stage: boom})
        bench.add(handler, 0, 1, 2, 3)
        results = await bench.done()
        classes = [results[member].error_class for member in range(4)]
        assert classes == [ErrorClass.TASK, ErrorClass.SANDBOX, ErrorClass.TASK, None]
        assert "ZeroDivisionError: scripted" in results[0].error
        assert [name for name, _ in handler.told] == [stage] * 3

    play(scenario)


def test_a_callback_that_raises_does_not_replace_the_first_error():
    class Clumsy(Scripted):
        def run_error(self, job, error):
            raise KeyError("second")

    async def first(job):
        raise InfraError(ErrorClass.SANDBOX, "first")

    async def scenario():
        bench = Bench()
        bench.add(Clumsy(run=first), 0)
        assert (await bench.done())[0].error_class == ErrorClass.SANDBOX

    play(scenario)


@pytest.mark.parametrize("nonsense", [Score(reward=float("nan")), Score(reward=1.0, parts={"x": "y"}), None])
def test_a_score_that_is_no_finite_number_is_the_handlers_error(nonsense):
    class Nonsense(Scripted):
        async def eval(self, job, episode):
            return nonsense

    async def scenario():
        bench = Bench()
        bench.add(Nonsense(), 0)
        assert (await bench.done())[0].error_class == ErrorClass.TASK

    play(scenario)


def test_a_member_submitted_twice_runs_once_and_another_try_runs_again():
    async def scenario():
        bench, handler = Bench(), Scripted()
        bench.add(handler, 0)
        assert list(bench.submit(handler, 0)) == [False]
        bench.add(handler, 0, tried=1)
        await bench.done()
        assert list(bench.submit(handler, 0)) == [False]
        assert len(bench.results) == 2

    play(scenario)


def test_members_seen_long_ago_are_forgotten_but_never_one_that_still_runs(monkeypatch):
    async def scenario():
        monkeypatch.setattr("prorl_cli.rollout.pipeline.SEEN", 2)
        bench, handler = Bench(), Scripted()
        bench.add(handler, 0, 1, 2, 3)
        assert list(bench.submit(handler, 0, 3)) == [False, False]
        await bench.done()
        assert list(bench.submit(handler, 0, 3)) == [True, False]
        await bench.done()

    play(scenario)


def test_cancelled_members_end_at_once_without_a_result_and_finished_ones_keep_theirs():
    async def scenario():
        bench = Bench(limits((8, 9.0), (2, 9.0), (8, 9.0)))
        quick, slow = Scripted(), Scripted(run=lambda job: asyncio.Event().wait())
        bench.add(quick, 0)
        await bench.done()
        bench.add(slow, 1, 2, 3)
        other = Scripted()
        while slow.inside["run"] < 2:
            await asyncio.sleep(0.005)
        bench.add(other, 0, group=1)
        started = time.monotonic()
        bench.pipeline.cancel(Purpose.EVAL, 0, [1])
        bench.pipeline.cancel(Purpose.TRAIN, 0, [0, 1, 2, 3])
        await bench.done()
        assert time.monotonic() - started < 2.0
        assert [(key.group, key.member) for key in bench.results] == [(0, 0), (1, 0)]
        assert sorted(slow.told, key=str) == [("run", asyncio.CancelledError)] * 3, "the queued one had an INIT to undo"
        assert bench.jobs[1].tools.closed == bench.jobs[2].tools.closed == 1

    play(scenario)


def test_a_drain_finishes_what_has_begun_drops_what_has_not_and_cancels_at_the_deadline():
    async def scenario():
        bench = Bench(limits((1, 9.0), (8, 9.0), (8, 9.0)))

        async def hang(job):
            if "member=1" in job.session:
                await asyncio.Event().wait()

        handler = Scripted(seconds=(0.0, 0.1, 0.0), run=hang)
        bench.add(handler, 0, 1)
        while handler.inside["run"] < 2:
            await asyncio.sleep(0.005)
        stuck = Scripted(init=lambda job: asyncio.Event().wait())
        bench.add(stuck, 2, 3)
        while not stuck.inside["init"]:
            await asyncio.sleep(0.005)
        started = time.monotonic()
        await bench.pipeline.drain(0.5)
        assert 0.5 <= time.monotonic() - started < 2.5
        assert [key.member for key in bench.results] == [0]
        assert stuck.most["init"] == 1, "member 3 never began"
        assert list(bench.submit(handler, 9)) == [False]

    play(scenario)


# ── the RUN clock ─────────────────────────────────────────────────────────────────────────────────────────────


class Looping(Scripted):
    """The real agent loop, with the test's policy."""

    async def run(self, job):
        return await run_episode(job.policy, job.renderer, [{"role": "user", "content": "?"}], job.tools, job.limits, 1)


class SlowPolicy:
    """Answers each turn after the next of `seconds`; a turn is a call that no tool accepts, so episodes go on."""

    def __init__(self, clocks, seconds, queue_s=0.0):
        self.clocks, self.seconds, self.queue_s = clocks, list(seconds), queue_s

    async def generate(self, session, prompt_ids, max_tokens, seed):
        with self.clocks.turn():
            with self.clocks.queueing():
                await asyncio.sleep(self.queue_s)
            await asyncio.sleep(self.seconds.pop(0))
        call = [5, 20, 6] if self.seconds else [20, END]
        spans = (VersionSpan(version=0, start=0, end=len(call)),)
        return Generation(token_ids=call, logprobs=[-0.1] * len(call), spans=spans, finish_reason="stop")


def test_many_turns_that_use_up_the_clock_are_the_policys_doing_and_are_scored():
    async def scenario():
        bench = Bench(limits(run=(8, 0.3)))
        bench.add(Looping(), 0, policy=partial(SlowPolicy, seconds=[0.11] * 9))
        result = (await bench.done())[0]
        assert result.error_class is None and result.score.reward == 1.0
        assert result.episode.stop_reason == StopReason.RUN_TIMEOUT
        assert 0 < sum(sequence.authored for sequence in result.episode.sequences) <= 9
        assert bench.jobs[0].tools.closed >= 1

    play(scenario)


def test_a_turn_that_nobody_answers_for_half_of_the_clock_is_the_engines_failure():
    async def scenario():
        bench = Bench(limits(run=(8, 0.3)))
        bench.add(Looping(), 0, policy=partial(SlowPolicy, seconds=[0.05, 60.0]))
        result = (await bench.done())[0]
        assert result.error_class == ErrorClass.ENGINE and "no engine answered its last turn" in result.error
        assert result.episode is not None, "what there was is kept for whoever looks"

    play(scenario)


def test_waiting_for_a_lease_does_not_run_down_the_clock():
    async def scenario():
        bench = Bench(limits(run=(8, 0.3)))
        bench.add(Looping(), 0, policy=partial(SlowPolicy, seconds=[0.05, 0.05], queue_s=0.4))
        result = (await bench.done())[0]
        assert result.episode.stop_reason == StopReason.ANSWERED
        assert result.timings.queue >= 0.8
        assert result.timings.run < 0.3 and result.timings.llm < 0.3

    play(scenario)


def test_seeds_are_pure_and_differ_between_members_and_tries():
    seeds = {member_seed(seed, member, tried) for seed in range(5) for member in range(8) for tried in range(3)}
    assert len(seeds) == 120 and all(0 <= seed < 2**63 for seed in seeds)
    assert member_seed(3, 1, 0) == 6879334285266640877
