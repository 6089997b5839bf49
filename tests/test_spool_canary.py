"""The canary of a weights folder: what it is made of, and what reading forgives."""

import math

import torch

from prorl_cli.spool.canary import (
    CANARY,
    LENGTH,
    Canary,
    canary_tokens,
    distance,
    encode,
    measure,
    read_canary,
    write_canary,
)
from tests.engine_kit import VOCAB, tiny_model


def test_its_tokens_follow_from_the_vocabulary_alone_and_lie_all_over_it():
    for size in (2, 102, 32000, 151936):
        ids = canary_tokens(size)
        assert ids == canary_tokens(size) and len(ids) == LENGTH and all(0 <= token < size for token in ids)
    assert len(set(canary_tokens(VOCAB))) > 20 and max(canary_tokens(151936)) > 140000


def test_it_is_the_full_forward_pass_and_survives_the_file(tmp_path):
    model = tiny_model(1)
    write_canary(tmp_path, model)
    canary = read_canary(tmp_path)
    logits = model(torch.tensor([canary.token_ids])).logits[0]
    expected = [torch.log_softmax(logits[i], -1)[canary.token_ids[i + 1]].item() for i in range(LENGTH - 1)]
    assert distance(canary, expected) < 1e-6
    assert distance(canary, measure(tiny_model(2)).logprobs) > 0.3


def test_one_that_is_missing_damaged_or_not_finite_is_none(tmp_path):
    assert read_canary(tmp_path) is None
    for content in (b"", b"{}", b"[1]", encode(Canary(token_ids=[1, 2], logprobs=[math.nan]))):
        (tmp_path / CANARY).write_bytes(content)
        assert read_canary(tmp_path) is None


def test_distance_is_of_as_many_as_were_scored_and_lets_no_nan_pass():
    canary = Canary(token_ids=[1, 2, 3], logprobs=[-1.0, -2.0])
    assert distance(canary, [-1.5]) == 0.5
    assert not distance(canary, [-1.0, math.nan]) < 1
