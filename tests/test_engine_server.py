"""The embedded engine whole, over real sockets: disconnects, refusals, drain, permits.

Engine and router run as roles of one run directory, in the test's own event loop.
"""

import asyncio
import math

import pytest
import torch

from prorl_cli.engine import follow as following
from prorl_cli.engine import swap as swapping
from prorl_cli.engine.protocol import GENERATE_PATH
from prorl_cli.engine.weights import Unproved
from prorl_cli.errors import InfraError
from prorl_cli.spool.weights import collect_weights
from prorl_cli.trajectory import ErrorClass
from prorl_cli.wire import Client, Refused
from tests.engine_kit import VOCAB, publish, respell, tiny_model, worst
from tests.engine_serving import engine_run, play, serving

torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path):
    return engine_run(tmp_path / "run")


def test_the_same_seed_gives_the_same_tokens_alone_and_in_a_crowd(run):
    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            alone = [await served.ask([5, 6, 7], seed=seed) for seed in range(4)]
            crowd = await asyncio.gather(*(served.ask([5, 6, 7], seed=seed) for seed in range(40)))
            assert [answer.token_ids for answer in crowd[:4]] == [answer.token_ids for answer in alone]
            assert len({tuple(answer.token_ids) for answer in crowd}) == 40

    play(test())


def test_a_client_that_leaves_ends_its_generation_within_a_step(run):
    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            leaving = [asyncio.ensure_future(served.ask([number], max_tokens=390)) for number in range(30)]
            await served.until(lambda gate: gate["tokens_total"] > 200 and gate["in_flight_requests"] == 30)
            for call in leaving:
                call.cancel()
            await served.until(lambda gate: gate["in_flight_requests"] == 0)
            # What was posted while a step ran is obeyed before the next one: at most one token a slot.
            seen = (await served.gate())["tokens_total"]
            await served.ask(max_tokens=5)
            assert (await served.gate())["tokens_total"] <= seen + 24 + 5
            assert seen < 30 * 390 / 2

    play(test())


def test_what_cannot_be_served_as_asked_is_refused_and_the_engine_lives(run):
    good = {"request_id": "r", "token_ids": [1, 2], "sampling_params": {"max_tokens": 4}}

    def body(**changes):
        return {**good, "sampling_params": {**good["sampling_params"], **changes}}

    cases = [
        (400, {**good, "token_ids": [1] * 400}, "prompt has 400 tokens"),
        (400, {**good, "token_ids": []}, "prompt has 0 tokens"),
        (422, {**good, "token_ids": [1, VOCAB]}, "vocabulary of 102"),
        (422, {**good, "token_ids": [-1]}, "vocabulary"),
        (400, body(max_tokens=0), "max_tokens"),
        (400, body(temperature=0), "temperature"),
        (400, body(top_p=0.9), "top_p"),
        (400, body(n=2), "n: 1"),
        (400, body(logprobs=5), "logprobs: 0"),
    ]

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            for status, wrong, words in cases:
                with pytest.raises(Refused) as refused:
                    await served.post(wrong)
                assert refused.value.status == status and words in refused.value.text, (wrong, refused.value.text)
            with pytest.raises(InfraError) as blamed:
                await served.ask([VOCAB])
            assert blamed.value.error_class == ErrorClass.INTERNAL, "no other engine should see this request"
            async with Client("wrong", served.role.run.certificate) as stranger:
                for method, path in (
                    ("POST", GENERATE_PATH),
                    ("GET", "/gate"),
                    ("GET", "/doorbell"),
                    ("GET", "/health"),
                ):
                    with pytest.raises(Refused) as refused:
                        await stranger.call(method, served.url + path, good, deadline_s=5)
                    assert refused.value.status == 401
            answer = await served.post({**good, "token_ids": [1] * 399})
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"] == {"prompt_tokens": 399, "completion_tokens": 1}
            assert len((await served.post(good))["choices"][0]["token_ids"]) == 4

    play(test())


def test_nan_weights_are_refused_by_the_client_and_the_next_version_is_clean(run):
    spoilt = tiny_model(1)
    spoilt.model.norm.weight.fill_(math.nan)

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=True) as served:
            publish(run, 1, spoilt)
            await served.until(lambda gate: gate["version"] == 1)
            with pytest.raises(InfraError, match="NaN") as refused:
                await served.ask()
            assert refused.value.error_class == ErrorClass.ENGINE
            publish(run, 2, tiny_model(2))
            await served.until(lambda gate: gate["version"] == 2)
            answer = await served.ask()
            assert worst({2: tiny_model(2)}, [1, 2, 3], answer.token_ids, answer.logprobs, [(2, 0, 30)]) < 1e-4

    play(test())


def test_weights_that_cannot_be_proved_are_never_announced_and_end_the_engine(run):
    def spoil(folder):
        respell(folder, lambda tensors: tensors["model.norm.weight"].mul_(1.001))

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            await served.ask()
            publish(run, 1, tiny_model(1), change=spoil)
            with pytest.raises(Unproved, match=r"model\.norm\.weight"):
                async with asyncio.timeout(15):
                    await served.working
            assert (served.endpoint.state, served.endpoint.version) == ("failed", 0)
            with pytest.raises(InfraError, match="failed"):
                await served.ask()

    play(test())


def test_an_engine_told_to_stop_finishes_what_is_in_flight(run):
    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            running = [asyncio.ensure_future(served.ask([number], max_tokens=200)) for number in range(5)]
            await served.until(lambda gate: gate["in_flight_requests"] == 5)
            served.role.stopping.set()
            await served.until(lambda gate: gate["state"] == "draining")
            with pytest.raises(InfraError, match="draining"):
                await served.ask()
            assert [len(answer.token_ids) for answer in await asyncio.gather(*running)] == [200] * 5
            await served.working

    play(test())


def test_past_its_drain_an_engine_answers_with_what_it_has_and_the_client_does_not_take_it_for_an_end(run, monkeypatch):
    monkeypatch.setattr(following, "DRAIN_S", 0.05)

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            running = [asyncio.ensure_future(served.ask([number], max_tokens=390)) for number in range(60)]
            await served.until(lambda gate: gate["in_flight_requests"] == 60)
            served.role.stopping.set()
            answers = await asyncio.gather(*running, return_exceptions=True)
            assert all(isinstance(answer, InfraError) and "abort" in str(answer) for answer in answers), answers[0]
            await served.working

    play(test())


def test_without_a_permit_the_old_version_serves_on_and_without_a_router_none_is_needed(run, monkeypatch):
    granted = asyncio.Event()
    asked = []

    async def refuse(role, path, body):
        asked.append((path, body))
        return {"granted": granted.is_set(), "ttl_s": 60}

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            with monkeypatch.context() as patched:
                patched.setattr(swapping, "_ask", refuse)
                publish(run, 1, tiny_model(1))
                async with asyncio.timeout(10):
                    while len(asked) < 3:
                        assert (await served.ask()).spans[0].version == 0
                assert served.endpoint.version == 0
                granted.set()
                await served.until(lambda gate: gate["version"] == 1)
                await served.until(lambda gate: asked[-1] == ("permits/release", {"engine": served.role.name}))
            assert asked[1] == ("permits", {"engine": served.role.name, "version": 1})
            monkeypatch.setattr(swapping, "NO_ROUTER_S", 0.1)
            publish(run, 2, tiny_model(2))
            await served.until(lambda gate: gate["version"] == 2)

    play(test())


def test_a_version_that_retention_takes_away_while_it_is_read_costs_the_next_one_nothing(run, monkeypatch):
    staging = following.weights.stage

    def overtaken(folder, manifest):
        if manifest.version == 1:
            publish(run, 2, tiny_model(2))
            collect_weights(run, {0, 2})
        return staging(folder, manifest)

    async def test():
        publish(run, 0, tiny_model(0))
        async with serving(run, router=False) as served:
            monkeypatch.setattr(following.weights, "stage", overtaken)
            publish(run, 1, tiny_model(1))
            await served.until(lambda gate: gate["version"] == 2)
            assert (await served.ask()).spans[0].version == 2

    play(test())


def test_an_engine_never_goes_back_to_an_older_version(run):
    async def test():
        publish(run, 0, tiny_model(0))
        publish(run, 1, tiny_model(1))
        async with serving(run, router=False) as served:
            beat = served.endpoint.beat
            collect_weights(run, {0})
            served.role.wake.set()
            async with asyncio.timeout(15):
                while served.endpoint.beat < beat + 2:
                    await asyncio.sleep(0.02)
            assert (await served.ask()).spans[0].version == 1 and served.endpoint.version == 1

    play(test())
