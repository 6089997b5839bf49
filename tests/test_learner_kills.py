"""Kill -9 at random moments over a prepared run: the end is bit-equal to the undisturbed one."""

import os
import random
import time

import pytest

from prorl_cli.learner.checkpoint import read_checkpoint
from prorl_cli.metrics import read_rows
from prorl_cli.spool.weights import latest_weights, verify_weights
from tests.learner_process import LearnerProcess, until
from tests.learner_run import Spool, make_run, recipe, tensors

LAST = 16


def long_plan(run):
    """Sixteen positions with everything in them: two updates a step, three resets, a restore across one of them."""
    spool = Spool(run)
    for n in range(1, LAST + 1):
        if n == 11:
            spool.restore(6)
        else:
            spool.step(reset_reference=n in (4, 8, 13), updates=1 + n % 2)


def finish(run, last=LAST):
    learner = LearnerProcess(run)
    until(lambda: latest_weights(run) >= last, f"weights {last}", learner)
    until(
        lambda: learner.endpoint and learner.endpoint.waiting == f"a manifest (step {last + 1})",
        "the named wait",
        learner,
    )
    assert learner.stop() == 0
    return learner


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("undisturbed") / "run")
    long_plan(run)
    finish(run)
    return run


def leftovers(run):
    return [str(p) for folder in (run.weights, run.checkpoints, run.steps) for p in folder.rglob(".tmp-*")]


def test_the_process_does_the_plan_alone_and_leaves_a_checkpoint_where_it_was_stopped(undisturbed):
    rows = {row["step"]: row for row in read_rows(undisturbed, "step")}
    assert sorted(rows) == [n for n in range(1, LAST + 1) if n != 11]
    contract = {
        "step", "reward", "reward_by_domain", "loss", "entropy", "kl", "clip_fraction", "grad_norm", "is_weight_mean",
        "step_s", "read_s", "train_s", "publish_s", "tokens", "records", "groups", "staleness", "waited_s",
    }  # fmt: skip
    assert contract <= set(rows[1])
    assert [row["step"] for row in read_rows(undisturbed, "restore")] == [11]
    assert read_checkpoint(undisturbed.checkpoint(LAST)).reference.version == 12
    assert leftovers(undisturbed) == []


def killed_at_a_random_moment(run, draw):
    """Any time after its birth, or around a position a little beyond what is done: however fast this machine is."""
    learner = LearnerProcess(run)
    until(lambda: learner.endpoint, "its endpoint", learner)
    if draw.random() < 0.75:
        target = min(LAST, latest_weights(run) + draw.randint(1, 3))
        until(lambda: learner.endpoint.step >= target or learner.endpoint.waiting, "its target", learner)
    time.sleep(draw.uniform(0, 0.1))
    learner.kill()


@pytest.mark.soak
def test_kill_9_at_twenty_random_moments_ends_in_bit_equal_weights(undisturbed, tmp_path):
    # void_after out of reach: a death by chance must not look like poison here
    run = make_run(tmp_path / "run", recipe(void_after=10_000))
    long_plan(run)
    draw = random.Random(20)
    reached = []
    for _ in range(20):
        killed_at_a_random_moment(run, draw)
        reached.append(latest_weights(run))
    finish(run)
    assert tensors(run, LAST) == tensors(undisturbed, LAST)
    assert read_checkpoint(run.checkpoint(LAST)) == read_checkpoint(undisturbed.checkpoint(LAST))
    assert sorted({row["step"] for kind in ("step", "restore") for row in read_rows(run, kind)}) == list(range(1, 17))
    assert [name for name in os.listdir(run.steps) if "void" in name] == []
    assert sorted(os.listdir(run.weights)) == sorted(os.listdir(undisturbed.weights)), "no lineage, same retention"
    assert [trouble for name in os.listdir(run.weights) for trouble in verify_weights(run.weights / name)] == []
    assert leftovers(run) == []
    assert len(set(reached)) > 3, "the kills did fall on different positions"
