"""The checks at the door of a trajectory, against the plain loops that say what they mean."""

import math
import random

import pytest

from prorl_cli.trajectory import Sequence, VersionSpan, check_sequence

VOCABULARIES = [1, 2, 5, 256, 65536, 151936, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 31) + 5, 1 << 32]
LOGPROBS = [0.0, -0.0, 1e-3, 1.0001e-3, 5e-4, 4e-4, math.inf, -math.inf, math.nan, -3e38, 3e38, -1e-45, 1e-45, -0.5]


def plainly(ids, mask, logprobs, spans, vocab):
    """How many of the four rules a sequence breaks."""
    covered = [0] * len(mask)
    inside = all(0 <= span.start < span.end <= len(mask) for span in spans)
    for span in spans if inside else ():
        for place in range(span.start, span.end):
            covered[place] += 1
    return (
        any(token >= vocab for token in ids)
        + any(bit not in (0, 1) for bit in mask)
        + any(bit and not (math.isfinite(value) and value <= 1e-3) for bit, value in zip(mask, logprobs, strict=True))
        + (not inside or covered != mask)
    )


def random_sequence(rng):
    length, vocab = rng.randrange(9), rng.choice(VOCABULARIES)
    ids = [rng.choice([0, vocab - 1, vocab // 2, rng.randrange(vocab)]) for _ in range(length)]
    ids = [min(token + (rng.random() < 0.05), 0xFFFFFFFF) for token in ids]
    mask = [2 if rng.random() < 0.03 else rng.randrange(2) for _ in range(length)]
    logprobs = [rng.choice(LOGPROBS) if rng.random() < 0.3 else -rng.random() * 20 for _ in range(length)]
    spans = [VersionSpan(version=1, start=n, end=n + 1) for n in range(length) if mask[n] == 1]
    if rng.random() < 0.2:
        spans.append(VersionSpan(version=1, start=rng.randrange(-1, 9), end=rng.randrange(10)))
    return ids, mask, logprobs, spans, vocab


@pytest.mark.parametrize("seed", range(4))
def test_over_random_sequences_the_checks_find_exactly_what_the_plain_loops_find(seed):
    rng, broken = random.Random(seed), 0
    for _ in range(2500):
        ids, mask, logprobs, spans, vocab = random_sequence(rng)
        sequence = Sequence.pack(ids, mask, logprobs, spans)
        stored = sequence.logprob_values
        assert len(check_sequence(sequence, vocab)) == plainly(ids, mask, stored, spans, vocab), (sequence, vocab)
        broken += bool(check_sequence(sequence, vocab))
    assert 500 < broken < 2300


def test_unequal_lengths_are_told_before_anything_else():
    whole = Sequence.pack([1, 2], [0, 1], [0.0, -1.0], [VersionSpan(version=0, start=1, end=2)])
    cut = Sequence(token_ids=whole.token_ids[:4], loss_mask=whole.loss_mask, logprobs=whole.logprobs, spans=whole.spans)
    assert check_sequence(whole, 3) == []
    assert check_sequence(cut, 3) == ["1 ids, 2 mask, 2 logprobs"]
