"""The decoder against its oracle: full forward passes, alone-in-the-batch runs, and exact distributions."""

import math
import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_cli.engine.decoder import Decoder, DecodeRequest, Gap, fill_plan, refuse_unfit
from prorl_cli.engine.sampling import sample, uniforms
from prorl_cli.engine.slots import Parked
from prorl_cli.engine.thread import Meter
from prorl_cli.errors import UserError
from tests.engine_kit import CONFIGS, VOCAB, tiny_model, worst

torch.set_num_threads(1)

TOLERANCE = 1e-4


def request(prompt, *, max_tokens=12, temperature=1.0, seed=0, stop=()):
    return DecodeRequest(
        token_ids=prompt, max_tokens=max_tokens, temperature=temperature, seed=seed, stop_ids=frozenset(stop)
    )


def random_request(rng, prompts=None):
    prompt = rng.choice(prompts) if prompts else [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 5, 30, 90]))]
    stop = rng.sample(range(VOCAB), 2)
    return request(
        prompt,
        max_tokens=rng.randint(1, 40),
        temperature=rng.choice([0.7, 1.0, 1.5]),
        seed=rng.getrandbits(63),
        stop=stop,
    )


def finish(decoder):
    done = {}
    while not decoder.idle:
        done.update(decoder.step())
    return done


def serve(model, requests, slots=8):
    decoder = Decoder(model, slots=slots)
    for ticket, wanted in enumerate(requests):
        decoder.add(ticket, wanted)
    done = finish(decoder)
    return [done[ticket] for ticket in range(len(requests))]


@pytest.mark.parametrize("seed", range(3))
def test_logprobs_are_those_of_the_version_each_span_names_across_swaps_joins_and_aborts(seed):
    rng = random.Random(seed)
    models = {version: tiny_model(100 * seed + version) for version in range(7)}
    serving = tiny_model(100 * seed)
    decoder = Decoder(serving, slots=12)
    decoder.version = version = 0
    requests, done, aborted = {}, {}, {}
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 7, 7, 40, 130)]
    for turn in range(120):
        for _ in range(rng.choice([0, 0, 1, 4]) if turn < 100 else 0):
            ticket = len(requests)
            requests[ticket] = random_request(rng, prompts if rng.random() < 0.6 else None)
            decoder.add(ticket, requests[ticket])
        if turn % 17 == 16 and version < 6:
            version += 1
            decoder.reload(version, partial(serving.load_state_dict, models[version].state_dict()))
        if rng.random() < 0.1 and requests:
            ticket = rng.choice(list(requests))
            if completion := decoder.abort(ticket):
                aborted[ticket] = completion
        done.update(decoder.step())
    done.update(finish(decoder))
    assert set(done) | set(aborted) == set(requests) and not set(done) & set(aborted) and aborted
    assert {span[0] for completion in done.values() for span in completion.spans} == set(models)
    assert max(len(completion.spans) for completion in done.values()) >= 3
    for ticket, completion in (done | {t: c for t, c in aborted.items() if c.token_ids}).items():
        wanted = requests[ticket]
        distance = worst(
            models, wanted.token_ids, completion.token_ids, completion.logprobs, completion.spans, wanted.temperature
        )
        assert distance < TOLERANCE, (ticket, distance)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_supported_family_matches_its_own_full_forward_pass(kind):
    model, rng = tiny_model(1, kind), random.Random(kind)
    requests = [random_request(rng) for _ in range(10)]
    for wanted, completion in zip(requests, serve(model, requests, slots=4), strict=True):
        spans = [(0, 0, len(completion.token_ids))]
        distance = worst(
            {0: model}, wanted.token_ids, completion.token_ids, completion.logprobs, spans, wanted.temperature
        )
        assert distance < TOLERANCE


def test_a_prompt_longer_than_one_fill_pass_matches_too():
    model, rng = tiny_model(1), random.Random(0)
    wanted = request([rng.randrange(VOCAB) for _ in range(300)], max_tokens=5)
    decoder = Decoder(model, slots=2)
    decoder.add(0, wanted)
    pieces = fill_plan([Gap(0, 0, 299)], 64)
    assert [(gap.start, gap.end) for batch in pieces for gap in batch] == [
        (0, 64), (64, 128), (128, 192), (192, 256), (256, 299),
    ]  # fmt: skip
    done = finish(decoder)[0]
    assert worst({-1: model}, wanted.token_ids, done.token_ids, done.logprobs, done.spans) < TOLERANCE


def test_tokens_depend_on_prompt_and_seed_only_not_on_neighbours_slots_or_kept_prefixes():
    model, rng = tiny_model(5), random.Random(5)
    requests = [random_request(rng) for _ in range(40)]
    alone = [serve(model, [wanted], slots=1)[0].token_ids for wanted in requests]
    assert [done.token_ids for done in serve(model, requests, slots=40)] == alone
    assert [done.token_ids for done in serve(model, requests, slots=7)] == alone
    assert [done.token_ids for done in serve(model, requests[::-1], slots=7)][::-1] == alone
    twice = serve(model, requests + requests, slots=16)
    assert [done.token_ids for done in twice] == alone + alone


def test_seeds_differ_and_a_group_of_one_prompt_explores():
    model = tiny_model(5)
    done = serve(model, [request([3, 4, 5], seed=seed, max_tokens=20) for seed in range(32)], slots=32)
    assert len({tuple(completion.token_ids) for completion in done}) == 32


def test_the_next_turn_of_a_session_fills_only_its_new_tokens(monkeypatch):
    model = tiny_model(2)
    decoder = Decoder(model, slots=4)
    filled = []
    original = decoder._fill
    monkeypatch.setattr(decoder, "_fill", lambda gaps: (filled.extend(gap.size for gap in gaps), original(gaps)))
    first = request([7] * 30, max_tokens=10)
    decoder.add(0, first)
    turn = finish(decoder)[0]
    second = request([*first.token_ids, *turn.token_ids, 9, 9, 9], max_tokens=10, seed=1)
    decoder.add(1, second)
    done = finish(decoder)[1]
    # Of turn one all but its last token was fed; of turn two all but its last token must be known.
    assert filled == [29, 3]
    assert worst({-1: model}, second.token_ids, done.token_ids, done.logprobs, done.spans) < TOLERANCE


def test_a_request_ends_with_its_stop_token_or_at_its_length_and_never_later():
    model, rng = tiny_model(3), random.Random(3)
    requests = [random_request(rng) for _ in range(60)]
    for wanted, completion in zip(requests, serve(model, requests), strict=True):
        stops = [position for position, token in enumerate(completion.token_ids) if token in wanted.stop_ids]
        if completion.finish_reason == "stop":
            assert stops == [len(completion.token_ids) - 1]
        else:
            assert completion.finish_reason == "length" and not stops
            assert len(completion.token_ids) == wanted.max_tokens


def test_nan_weights_give_nan_logprobs_and_the_next_version_finds_nothing_left_of_them():
    good, serving = tiny_model(1), tiny_model(1)
    serving.model.layers[0].mlp.up_proj.weight.fill_(math.nan)
    decoder = Decoder(serving, slots=4)
    decoder.version = 0
    short, long = request([5, 6], seed=1, max_tokens=20), request(list(range(60)), seed=2)
    decoder.add(0, short)
    decoder.add(1, long)
    decoder.step()
    bad = decoder.abort(1)
    assert math.isnan(bad.logprobs[0]) and all(0 <= token < VOCAB for token in bad.token_ids)
    decoder.reload(1, lambda: serving.load_state_dict(good.state_dict()))
    decoder.step()
    # The short row was padded to the long one's length; another long one makes the batch look that far again.
    decoder.add(2, long)
    done = finish(decoder)
    assert done[0].spans == [(0, 0, 1), (1, 1, 20)]
    after = [*short.token_ids, *done[0].token_ids[:1]]
    assert worst({1: good}, after, done[0].token_ids[1:], done[0].logprobs[1:], [(1, 0, 19)]) < TOLERANCE
    assert worst({1: good}, long.token_ids, done[2].token_ids, done[2].logprobs, done[2].spans) < TOLERANCE


def test_a_request_that_turns_to_nan_spoils_no_other():
    """One token's embedding is NaN: whatever reads it is lost, everything else is served right."""
    model, rng = tiny_model(4), random.Random(4)
    model.model.embed_tokens.weight[7] = math.nan
    requests = [random_request(rng) for _ in range(150)]
    lost = 0
    for wanted, done in zip(requests, serve(model, requests, slots=6), strict=True):
        tokens = [*wanted.token_ids, *done.token_ids]
        read = tokens.index(7) if 7 in tokens else len(tokens)
        good = max(0, read + 1 - len(wanted.token_ids)) if read < len(tokens) else len(done.token_ids)
        assert all(math.isnan(logprob) for logprob in done.logprobs[good:])
        lost += len(done.token_ids) - good
        if good:
            ids, spans = done.token_ids[:good], [(0, 0, good)]
            distance = worst({0: model}, wanted.token_ids, ids, done.logprobs[:good], spans, wanted.temperature)
            assert distance < TOLERANCE
    assert lost > 100


def test_samples_follow_the_distribution_their_logprobs_claim():
    torch.manual_seed(0)
    logits = torch.randn(1, 12).repeat(60_000, 1) * 2
    temperature = torch.full((60_000,), 1.3)
    seeds = np.arange(60_000, dtype=np.uint64) * np.uint64(3)
    ids, logprobs = sample(logits, temperature, torch.from_numpy(uniforms(seeds, np.zeros(60_000, np.uint64))))
    expected = torch.softmax(logits[0] / 1.3, dim=-1)
    counts = torch.bincount(ids, minlength=12)
    # Chi-square with 11 degrees of freedom: 31.3 is its 99.9 % quantile.
    assert ((counts - 60_000 * expected) ** 2 / (60_000 * expected)).sum() < 31.3
    assert torch.allclose(logprobs.exp(), expected[ids], atol=1e-6)


def test_uniforms_of_neighbouring_seeds_and_counters_are_independent():
    seeds, counters = np.meshgrid(np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.uint64))
    drawn = uniforms(seeds.ravel(), counters.ravel())
    assert len(set(drawn)) == drawn.size and drawn.min() >= 0 and drawn.max() < 1
    grid = drawn.reshape(300, 300) - 0.5
    for shifted in (grid[1:, :] * grid[:-1, :], grid[:, 1:] * grid[:, :-1]):
        # A product of two independent uniforms on ±½ has mean 0 and deviation 1/12.
        assert abs(shifted.mean()) < 4 / 12 / math.sqrt(shifted.size)


def test_a_token_without_probability_is_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).repeat(3, 1)
    ids, _ = sample(logits, torch.ones(3), torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64))
    assert ids.tolist() == [1, 3, 3]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 200)), max_size=30), st.integers(8, 128))
@settings(max_examples=200, deadline=None)
def test_a_fill_plan_covers_every_gap_once_in_order_and_within_its_budget(shapes, budget):
    gaps = [Gap(row, start, start + size) for row, (start, size) in enumerate(shapes)]
    reached = {gap.row: gap.start for gap in gaps}
    for batch in fill_plan(gaps, budget):
        assert batch and len(batch) * max(gap.size for gap in batch) <= max(budget, max(gap.size for gap in batch))
        assert max(gap.size for gap in batch) <= budget
        for piece in batch:
            assert piece.start == reached[piece.row]
            reached[piece.row] = piece.end
    assert reached == {gap.row: gap.end for gap in gaps}


def test_parked_prefixes_are_found_by_exact_ids_and_the_oldest_goes_first():
    parked = Parked(limit_bytes=3 * 400)
    states = torch.zeros(100)
    parked.put([1, 2], states)
    parked.put([1, 2, 3, 4], states)
    assert parked.longest([1, 2, 3, 4, 5])[0] == 4
    assert parked.longest([1, 2, 3, 5])[0] == 2
    assert parked.longest([2, 1, 3]) is None
    parked.put([8], states)
    parked.put([9], states)
    assert parked.longest([1, 2, 3, 4])[0] == 2, "the longer one was used least recently"
    parked.clear()
    assert parked.longest([1, 2, 3, 4]) is None


def test_models_that_see_less_than_the_past_are_refused():
    config = CONFIGS["qwen2"]()
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UserError, match=r"qwen2.*sliding_attention"):
        refuse_unfit(config)
    config = CONFIGS["llama"]()
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with pytest.raises(UserError, match="dynamic"):
        refuse_unfit(config)


def test_the_reported_speed_is_that_of_the_last_seconds_and_not_of_a_slow_first_step():
    meter = Meter()
    assert meter.facts() == {"tokens_total": 0, "busy_s": 0.0, "tokens_per_s": 0.0}
    meter.add(1, 0.5)
    for _ in range(300):
        meter.add(100, 0.01)
    assert meter.tokens_total == 30_001 and meter.busy_s == pytest.approx(3.5)
    assert 8_000 < meter.tokens_per_s < 10_000
    for _ in range(10_000):
        meter.add(10, 0.01)
    assert meter.tokens_per_s == pytest.approx(1000, rel=0.01)
