"""Weights change under load: nothing is dropped, and every token names the weights it came from."""

import asyncio
import random

import pytest
import torch

from prorl_cli.metrics import read_rows
from tests.engine_kit import VOCAB, publish, tiny_model, worst
from tests.engine_serving import engine_run, play, serving

torch.set_num_threads(1)


@pytest.mark.soak
def test_twenty_swaps_under_load_answer_every_request_with_the_logprobs_of_the_versions_named(tmp_path):
    run = engine_run(tmp_path / "run")
    models = {version: tiny_model(version) for version in range(21)}

    async def client(served, number, answers, over):
        rng = random.Random(number)
        while not over.is_set():
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
            temperature = rng.choice([0.8, 1.0])
            answer = await served.ask(prompt, max_tokens=rng.randint(1, 200), temperature=temperature)
            answers.append((prompt, temperature, answer))

    async def test():
        publish(run, 0, models[0])
        async with serving(run) as served:
            answers, over = [], asyncio.Event()
            clients = [asyncio.ensure_future(client(served, number, answers, over)) for number in range(40)]
            for version in range(1, 21):
                await asyncio.to_thread(publish, run, version, models[version])
                served.role.wake.set()
                await served.until(lambda gate, version=version: gate["version"] == version)
            over.set()
            await asyncio.gather(*clients)
            gate = await served.gate()
            assert (gate["in_flight_requests"], gate["in_flight_tokens"]) == (0, 0)
            assert gate["tokens_total"] >= sum(len(answer.token_ids) for _, _, answer in answers)
            assert served.endpoint.version == 20
        assert len(answers) == served.sent
        changes = sum(len(answer.spans) - 1 for _, _, answer in answers)
        assert changes >= 20 * 5, f"only {changes} generations were caught in the middle by 20 swaps"
        assert {span.version for _, _, answer in answers for span in answer.spans} == set(models)
        for prompt, temperature, answer in random.Random(0).sample(answers, min(100, len(answers))):
            spans = [(span.version, span.start, span.end) for span in answer.spans]
            assert worst(models, prompt, answer.token_ids, answer.logprobs, spans, temperature) < 1e-4
        assert [row["version"] for row in read_rows(run, "swap")] == list(range(21))

    play(test())
