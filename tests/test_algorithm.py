"""Rewards to advantages and schedules, against numbers worked out by hand."""

import math
import subprocess
import sys
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.algorithm import (
    correction_refusal,
    group_advantages,
    informative,
    pass_at_1,
    permuted_rewards,
    schedule,
)
from prorl_cli.recipe import Recipe


def test_advantages_equal_the_published_numbers_of_the_bessel_convention():
    assert group_advantages([1, 0, 0, 1]) == pytest.approx([0.8660, -0.8660, -0.8660, 0.8660], abs=1e-4)
    assert group_advantages([0, 0, 0, 1]) == pytest.approx([-0.5, -0.5, -0.5, 1.5], abs=1e-4)


def test_advantages_of_graded_rewards_by_hand():
    # mean 0.5, deviations -0.5, 0, 0.5; sample variance 0.25; std 0.5
    assert group_advantages([0.0, 0.5, 1.0]) == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)


@pytest.mark.parametrize("rewards", [[0.0] * 8, [1.0] * 3, [0.3], []])
def test_a_group_without_a_difference_gives_zeros(rewards):
    assert group_advantages(rewards) == [0.0] * len(rewards)
    assert not informative(rewards)


def test_informative_is_exact_not_tolerant():
    assert informative([0.3, 0.1 + 0.2])
    assert max(map(abs, group_advantages([0.3, 0.1 + 0.2]))) < 1e-9, "rounding noise is not blown up to unit advantages"
    assert not informative([0.3, 0.3])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused_rather_than_spread(bad):
    with pytest.raises(ValueError, match="not finite"):
        group_advantages([1.0, bad, 0.0])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=16), st.floats(-5, 5))
def test_advantages_sum_to_zero_and_do_not_move_with_the_rewards_offset(rewards, offset):
    moved = [reward + offset for reward in rewards]
    assert abs(sum(group_advantages(rewards))) < 1e-6
    if max(rewards) - min(rewards) > 1e-2:
        assert group_advantages(moved) == pytest.approx(group_advantages(rewards), abs=1e-3)


def test_permuted_rewards_keep_the_multiset_and_shapes_and_depend_on_the_seed_only():
    groups = [[float(10 * g + m) for m in range(4)] for g in range(5)]
    shuffled = permuted_rewards(groups, "7-3")
    assert [len(group) for group in shuffled] == [4] * 5
    assert sorted(chain(*shuffled)) == sorted(chain(*groups))
    assert shuffled != groups
    assert shuffled == permuted_rewards(groups, "7-3")
    assert shuffled != permuted_rewards(groups, "7-4")


def test_pass_at_1_and_its_standard_error_by_hand():
    share, error = pass_at_1([1.0, 1.0, 0.0, 0.5])
    assert (share, error) == (0.5, 0.25)
    assert pass_at_1([1.0] * 9) == (1.0, 0.0)
    with pytest.raises(ValueError, match="no items"):
        pass_at_1([])


def recipe(**learner):
    return Recipe.model_validate(
        {
            "name": "t",
            "model": "builtin:tiny",
            "tasks": ({"domain": "d", "source": "s"},),
            "agent": {"renderer": "tiny"},
            "learner": learner,
        }
    )


def test_the_learning_rate_rises_linearly_from_the_first_step_then_stays():
    warm = recipe(lr=1e-3, lr_warmup=4)
    assert [schedule(warm, n) for n in (1, 2, 3, 4, 5, 900)] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert schedule(recipe(lr=1e-3), 1) == 1e-3


def test_stale_data_without_a_correction_is_refused_in_words():
    assert "is_cap" in correction_refusal(is_cap=0.0, staleness=1)
    assert correction_refusal(is_cap=2.0, staleness=3) == ""
    assert correction_refusal(is_cap=0.0, staleness=0) == ""


def test_the_coordinators_half_of_the_room_needs_no_torch():
    code = "import sys, prorl_cli.algorithm; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
