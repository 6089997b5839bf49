"""The client takes no answer that must not be trained on: every way of spoiling a good one is refused."""

import asyncio
import copy
import json

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from prorl_cli.engine import GenerateRequest, generate
from prorl_cli.engine.client import check_answer
from prorl_cli.engine.protocol import GENERATE_PATH, GenerateAnswer
from prorl_cli.errors import InfraError
from prorl_cli.trajectory import ErrorClass, VersionSpan
from tests import tls

REQUEST = GenerateRequest(request_id="r1", token_ids=[1, 2], max_tokens=4, seed=3, stop_token_ids=(9,))

GOOD = {
    "request_id": "generate-tokens-r1",
    "created": 1,
    "choices": [
        {
            "index": 0,
            "token_ids": [5, 6, 9],
            "finish_reason": "stop",
            "stop_reason": 9,
            "logprobs": {"content": [{"token_id": t, "logprob": -0.5 - t, "rank": 1} for t in (5, 6, 9)]},
            "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
}


def spoilt(edit):
    answer = copy.deepcopy(GOOD)
    edit(answer["choices"][0], answer)
    return answer


def entry(choice, position):
    return choice["logprobs"]["content"][position]


SPOILT = {
    "no choice": lambda choice, answer: answer.update(choices=[]),
    "two choices": lambda choice, answer: answer["choices"].append(choice),
    "another request's": lambda choice, answer: answer.update(request_id="r2"),
    "aborted": lambda choice, answer: choice.update(finish_reason="abort"),
    "nothing generated": lambda choice, answer: choice.update(
        token_ids=[], logprobs={"content": []}, weight_versions=[], finish_reason="length"
    ),
    "more than asked for": lambda choice, answer: choice.update(token_ids=[5] * 5, finish_reason="length"),
    "stopped without a stop token": lambda choice, answer: (
        choice["token_ids"].__setitem__(2, 8), entry(choice, 2).update(token_id=8)
    ),
    "went on after a stop token": lambda choice, answer: choice.update(finish_reason="length"),
    "no logprobs": lambda choice, answer: choice.update(logprobs=None),
    "one logprob short": lambda choice, answer: choice["logprobs"]["content"].pop(),
    "logprobs of other tokens": lambda choice, answer: entry(choice, 1).update(token_id=7),
    "a null logprob": lambda choice, answer: entry(choice, 1).update(logprob=None),
    "a NaN logprob, clamped by vLLM": lambda choice, answer: entry(choice, 1).update(logprob=-9999.0),
    "a positive logprob": lambda choice, answer: entry(choice, 0).update(logprob=0.5),
    "no versions": lambda choice, answer: choice.update(weight_versions=None),
    "an unnamed version": lambda choice, answer: choice["weight_versions"][0].update(version="default"),
    "a gap between versions": lambda choice, answer: choice["weight_versions"][1].update(start=3, end=4),
    "versions that overlap": lambda choice, answer: choice["weight_versions"][1].update(start=1),
    "versions that end early": lambda choice, answer: choice["weight_versions"].pop(),
    "an empty version": lambda choice, answer: choice["weight_versions"][0].update(end=0),
}  # fmt: skip


def test_a_good_answer_passes():
    assert check_answer(msgspec.convert(GOOD, GenerateAnswer), REQUEST) == []


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_answer_does_not(what):
    assert check_answer(msgspec.convert(spoilt(SPOILT[what]), GenerateAnswer), REQUEST)


async def through_http(status, body):
    async def answer(request):
        assert json.loads(await request.body())["sampling_params"] == {
            "max_tokens": 4, "temperature": 1.0, "seed": 3, "stop_token_ids": [9], "logprobs": 0, "n": 1,
        }  # fmt: skip
        return Response(body, status_code=status)

    server = tls.server(Starlette(routes=[Route(GENERATE_PATH, answer, methods=["POST"])]))
    url = await server.start()
    async with tls.client("token") as client:
        try:
            return await generate(client, url, REQUEST, 5)
        finally:
            await server.stop()


def test_a_good_answer_becomes_a_generation():
    generation = asyncio.run(through_http(200, json.dumps(GOOD)))
    assert generation.token_ids == [5, 6, 9] and generation.logprobs == [-5.5, -6.5, -9.5]
    assert generation.spans == (VersionSpan(version=3, start=0, end=2), VersionSpan(version=4, start=2, end=3))
    assert generation.finish_reason == "stop"


@pytest.mark.parametrize(
    ("status", "body", "blamed"),
    [
        (200, "not json", ErrorClass.ENGINE),
        (200, "{}", ErrorClass.ENGINE),
        (200, '{"request_id": "r1", "choices": [{"token_ids": ["a"]}]}', ErrorClass.ENGINE),
        (200, json.dumps(spoilt(SPOILT["no logprobs"])), ErrorClass.ENGINE),
        (500, "", ErrorClass.ENGINE),
        (503, "draining", ErrorClass.ENGINE),
        (401, "", ErrorClass.ENGINE),
        (422, "outside the vocabulary", ErrorClass.INTERNAL),
        (400, "too long", ErrorClass.INTERNAL),
    ],
)
def test_every_other_answer_is_an_infrastructure_error_of_the_right_class(status, body, blamed):
    with pytest.raises(InfraError) as error:
        asyncio.run(through_http(status, body))
    assert error.value.error_class == blamed


def test_an_engine_that_is_gone_is_the_engines_failure():
    async def test():
        async with tls.client("token") as client:
            await generate(client, "https://127.0.0.1:9", REQUEST, 5)

    with pytest.raises(InfraError) as error:
        asyncio.run(test())
    assert error.value.error_class == ErrorClass.ENGINE
