"""Turns written by engines behind a real router: failures go elsewhere within a budget, bad requests go nowhere."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from starlette.responses import Response

from prorl_cli.agent import EnginePolicy, Limits, Sampling, ToolBox, load_renderer, policy, run_episode
from prorl_cli.errors import InfraError
from prorl_cli.router.client import LeaseClient
from prorl_cli.trajectory import ErrorClass, StopReason, VersionSpan
from tests.agent_parts import Boxes, Result
from tests.scripted_engine import ScriptedEngine
from tests.test_router_service import fleet, serve

TINY = load_renderer("tiny", None)
PROMPT = TINY.start([{"role": "user", "content": "1 + 2"}], ())


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch):
    monkeypatch.setattr(policy, "BACKOFF_S", 0.001)


def policy_over(made, **sampling):
    return EnginePolicy(made.client, LeaseClient(made), Sampling(temperature=1.0, stop_ids=TINY.stop_ids, **sampling))


async def keep_polling(made):
    while True:
        await made.poll()
        await asyncio.sleep(0.01)


def scenario(*versions, **script):
    """Decorates a scenario over engines of these versions; the first one follows the script."""

    def run(body):
        async def inner():
            async with fleet(*versions) as made:
                for name, value in script.items():
                    setattr(made.engines["e0"], name, value)
                polling = asyncio.create_task(keep_polling(made))
                await body(made)
                polling.cancel()

        asyncio.run(inner())

    return run


def test_an_episode_is_written_by_engines_under_leases_of_its_version():
    @scenario(4, 3)
    async def _(made):
        writer = policy_over(made, version=4)
        tools = ToolBox(Boxes([Result("3")]), ["calculator"], 1.0)
        messages = [{"role": "user", "content": "1 + 2"}]
        episode = await run_episode(writer, TINY, messages, tools, Limits(max_turns=3, max_tokens=100), 5, session="s")
        assert (episode.stop_reason, episode.answer, writer.engine) == (StopReason.ANSWERED, "3", "e0")
        at = len(PROMPT)
        assert episode.sequences[0].spans[0] == VersionSpan(version=4, start=at, end=at + 7)
        assert made.engines["e0"].served == 2
        assert len(set(made.engines["e0"].seeds)) == 2


def test_an_engine_that_fails_is_left_for_another():
    @scenario(1, 1, fail=True)
    async def _(made):
        for number in range(20):
            written = await policy_over(made).generate(f"s{number}", PROMPT, 50, 1)
            assert written.finish_reason == "stop"
        assert made.engines["e1"].served == 20
        assert made.engines["e0"].started >= 1


def test_the_budget_of_tries_ends_in_an_engine_error():
    @scenario(1, fail=True)
    async def _(made):
        with pytest.raises(InfraError) as caught:
            await policy_over(made).generate("s", PROMPT, 50, 1)
        assert caught.value.error_class == ErrorClass.ENGINE
        assert made.engines["e0"].started == policy.TRIES


@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_an_engine_refuses_as_bad_is_never_retried(status):
    class Refusing(ScriptedEngine):
        async def generate(self, request):
            self.started += 1
            return Response("token id 999 is outside the vocabulary", status_code=status)

    async def inner():
        async with fleet(1) as made, AsyncExitStack() as stack:
            made.engines["e0"] = Refusing(version=1)
            made.urls["e0"] = await serve(stack, made.engines["e0"].app())
            await made.poll()
            with pytest.raises(InfraError, match="outside the vocabulary") as caught:
                await policy_over(made).generate("s", PROMPT, 50, 1)
            assert caught.value.error_class == ErrorClass.INTERNAL
            assert made.engines["e0"].started == 1

    asyncio.run(inner())


def test_cancelling_a_turn_aborts_it_in_the_engine():
    @scenario(1, hang=True)
    async def _(made):
        turn = asyncio.create_task(policy_over(made).generate("s", PROMPT, 50, 1))
        engine = made.engines["e0"]
        while not engine.started:
            await asyncio.sleep(0.005)
        turn.cancel()
        async with asyncio.timeout(2):
            while not engine.aborted:
                await asyncio.sleep(0.005)
        assert turn.cancelled()
        assert engine.started == 1


def test_no_lease_within_its_deadline_is_said_at_once():
    @scenario(1)
    async def _(made):
        leases = LeaseClient(made, deadline_s=0.2)
        writer = EnginePolicy(made.client, leases, Sampling(temperature=1.0, stop_ids=TINY.stop_ids, min_version=9))
        with pytest.raises(InfraError, match="no lease") as caught:
            await writer.generate("s", PROMPT, 50, 1)
        assert (caught.value.error_class, made.engines["e0"].started) == (ErrorClass.ENGINE, 0)
