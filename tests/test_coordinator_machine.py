"""The coordinator's decisions as a whole, over random histories: whatever dies and whenever, the step log is right."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.coordinator_world import World, make_recipe

CHOICES = st.lists(st.integers(0, 999), max_size=400)
RELAXED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def check(world):
    world.check_account()
    recipe = world.recipe
    if world.outcome.state == "starved":
        assert "none of them has rewards that differ" in world.outcome.reason
        return
    assert world.outcome.state == "done"
    assert len(world.manifests) == recipe.learner.steps == world.weights
    due = {version for version in range(recipe.learner.steps) if version % 3 == 0} | {recipe.learner.steps}
    assert set(world.evaluations) == (due if recipe.eval.n else set())
    assert all(found.n + found.failed == recipe.eval.n for found in world.evaluations.values())


@RELAXED
@given(CHOICES, st.integers(0, 2), st.sampled_from([1, 7, 64]))
def test_any_history_of_deaths_restarts_and_rivals_ends_with_a_sound_step_log(choices, staleness, slots):
    recipe = make_recipe(rollout={"max_staleness": staleness, "run": {"slots": slots}}, eval={"n": 5, "every": 3})
    check(World(recipe, choices).run())


@pytest.mark.parametrize("seed", range(60))
def test_long_histories_end_with_a_sound_step_log(seed):
    dice = random.Random(seed)
    rollout = {
        "max_staleness": dice.choice([0, 1, 2]), "groups_per_step": dice.choice([1, 2, 4]),
        "group_size": dice.choice([2, 3, 5]), "max_resample": dice.choice([1.0, 1.5, 4.0]),
        "deadline": dice.choice(["50s", "300s"]), "run": {"slots": dice.choice([1, 3, 7, 64])},
    }  # fmt: skip
    recipe = make_recipe(
        rollout=rollout, eval={"n": dice.choice([0, 5]), "every": 3}, learner={"steps": dice.choice([0, 4, 9])}
    )
    passes = dice.choice([0.2, 0.5, 0.9])

    def reward(world, request, member):
        return float(member % 2) if world.calm else float(dice.random() < passes)

    choices = [dice.randrange(1000) for _ in range(dice.choice([100, 1000, 5000]))]
    check(World(recipe, choices, reward=reward).run())


@pytest.mark.parametrize("seed", range(12))
def test_a_step_that_is_short_of_groups_with_a_signal_makes_none_behind_it_stale(seed):
    dice = random.Random(seed)
    rollout = {
        "max_staleness": dice.choice([0, 1, 2]), "groups_per_step": 4, "group_size": 3,
        "max_resample": dice.choice([1.0, 1.5]), "run": {"slots": 64},
    }  # fmt: skip
    choices = (dice.randrange(1000) for _ in range(20_000))
    reward = lambda world, request, member: float(dice.random() < 0.3)  # noqa: E731
    world = World(make_recipe(rollout=rollout, learner={"steps": 20}), choices, faults=False, reward=reward).run()
    assert any(len(manifest.groups) < 4 for manifest in world.manifests)
    assert {dropped.reason for manifest in world.manifests for dropped in manifest.dropped} <= {"zero_variance"}


def test_without_faults_nothing_is_dropped_but_groups_without_a_signal():
    dice = random.Random(1)
    world = World(make_recipe(learner={"steps": 12}), (dice.randrange(1000) for _ in range(20_000)), faults=False).run()
    assert len(world.manifests) == 12
    assert {dropped.reason for manifest in world.manifests for dropped in manifest.dropped} <= {"zero_variance"}
    assert all(len(manifest.groups) == 2 for manifest in world.manifests)
