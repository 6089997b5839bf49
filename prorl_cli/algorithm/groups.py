"""Rewards of groups: advantages, what carries a signal, pass@1 and the shuffled-reward control.

Takes the rewards of finished members only; whoever calls has already left out failed ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

STD_FLOOR = 1e-6
"""Added to the group's standard deviation (verl's value; TRL uses 1e-4)."""

PASSED = 0.99
"""A reward of at least this counts as solved: binary verifiers give 1.0, some give 1.0 less rounding."""


def group_advantages(rewards_G: Sequence[float]) -> list[float]:
    """GRPO: (r − mean) / (std + 1e-6), with the sample standard deviation (divisor G − 1, as TRL and verl).

    All rewards equal, or a single member: zeros. A reward that is not finite: ValueError.
    """
    if not all(math.isfinite(reward) for reward in rewards_G):
        raise ValueError(f"a reward is not finite: {list(rewards_G)}")
    if not informative(rewards_G):
        return [0.0] * len(rewards_G)
    mean = fmean(rewards_G)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards_G) / (len(rewards_G) - 1))
    return [(reward - mean) / (deviation + STD_FLOOR) for reward in rewards_G]


def informative(rewards_G: Sequence[float]) -> bool:
    """Whether a group can move the policy: not all rewards exactly equal (no tolerance, before any shaping)."""
    return len(set(rewards_G)) > 1


def permuted_rewards(groups: Sequence[Sequence[float]], seed: str) -> list[list[float]]:
    """The control experiment: all rewards of a step permuted across its groups, purely by the arguments."""
    flat = [reward for group in groups for reward in group]
    random.Random(f"rewards-{seed}").shuffle(flat)
    left = iter(flat)
    return [[next(left) for _ in group] for group in groups]


def correction_refusal(*, is_cap: float, staleness: int) -> str:
    """Why data `staleness` versions old may not be trained on under this cap, in words; empty when it may."""
    if is_cap > 0 or staleness <= 0:
        return ""
    return f"data {staleness} versions old needs an importance correction: set learner.is_cap above 0"


def pass_at_1(rewards: Sequence[float]) -> tuple[float, float]:
    """Share of one-sample-an-item rewards that passed, and its binomial standard error; ValueError for no items."""
    if not rewards:
        raise ValueError("pass@1 of no items")
    share = sum(reward >= PASSED for reward in rewards) / len(rewards)
    return share, math.sqrt(share * (1 - share) / len(rewards))
