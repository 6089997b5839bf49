"""The learner's pure half: rows and micro-batches, what may be trained on, who died, what stays."""

import math
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.learner.batch import (
    Batch,
    build_batch,
    facts,
    micro_batches,
    record_trouble,
    schedule,
    staleness,
    step_trouble,
)
from prorl_cli.learner.checkpoint import checkpoints_to_keep
from prorl_cli.learner.verdicts import deaths, next_lineage, weights_to_keep
from prorl_cli.spool.evals import Evaluation
from prorl_cli.spool.members import Endpoint, Obituary
from prorl_cli.trajectory import ErrorClass, RecordRef, Sequence, StepKind, StepManifest
from tests.learner_run import VOCAB, trajectory


def manifest(**changes):
    return StepManifest(**{"position": 5, "kind": StepKind.STEP, "is_cap": 2.0, **changes})


def group(number, rewards, **changes):
    return [trajectory(number, m, version=3, reward=reward, **changes) for m, reward in enumerate(rewards)]


def ref(record, **changes):
    return RecordRef(**{"writer": "w", "seq": 0, "group": record.group, "member": record.member, **changes})


def advantages(batch):
    return [round(row.advantage, 3) for share in batch.shares for row in share]


def test_a_failed_member_is_left_out_before_the_groups_mean_is_taken():
    members = group(0, [1, 0, 1])
    members.insert(1, trajectory(0, 9, version=3, reward=0, error_class=ErrorClass.ENGINE))
    batch = build_batch([members], updates=1, temperature=1.0)
    assert advantages(batch) == [0.577, -1.155, 0.577]
    assert facts(manifest(), [members])["reward"] == pytest.approx(2 / 3)


def test_every_sequence_of_a_trajectory_gets_its_advantage_and_unauthored_ones_are_no_rows():
    one, two = group(0, [1, 0])
    silent = Sequence.pack([1, 2], [0, 0], [0, 0], [])
    longer = trajectory(0, 0, version=3, reward=1, sequences=(*one.sequences, silent, *two.sequences))
    rows = build_batch([[longer, two]], updates=1, temperature=1.0).shares[0]
    assert [round(row.advantage, 3) for row in rows] == [0.707, 0.707, -0.707]


def test_groups_are_dealt_to_updates_whole_and_each_row_once():
    groups = [group(g, [1, 0]) for g in range(5)]
    batch = build_batch(groups, updates=2, temperature=1.0)
    assert [len(share) for share in batch.shares] == [6, 4]
    given = [row.sequence for share in batch.shares for row in share]
    assert sorted(map(id, given)) == sorted(id(s) for g in groups for t in g for s in t.sequences)
    assert len(build_batch(groups, updates=9, temperature=1.0).shares) == 5, "no empty update"


def test_a_record_says_its_own_temperature():
    members = group(0, [1, 0], sampling={"temperature": 1.2})
    silent = group(1, [1, 0], sampling={})
    rows = build_batch([members, silent], updates=1, temperature=0.7).shares[0]
    assert [row.temperature for row in rows] == [1.2, 1.2, 0.7, 0.7]


def test_the_shuffled_control_changes_who_is_rewarded_but_not_how_much():
    groups = [group(g, [1, 0, 0, g % 2]) for g in range(8)]
    plain = build_batch(groups, updates=1, temperature=1.0)
    control = build_batch(groups, updates=1, temperature=1.0, shuffle="3-5")
    assert control == build_batch(groups, updates=1, temperature=1.0, shuffle="3-5")
    assert advantages(control) != advantages(plain)


@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 200))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths, budget):
    rows = [row_of(length) for length in lengths]
    cut = micro_batches(rows, budget)
    assert sorted(map(id, chain(*cut))) == sorted(map(id, rows))
    for part in cut:
        assert len(part) == 1 or len(part) * max(map(len, part)) <= budget


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(1, 5), st.integers(60, 200))
def test_every_rank_has_as_many_micro_batches_each_row_is_on_one_and_tokens_are_balanced(lengths, ranks, budget):
    rows = tuple(row_of(length) for length in lengths)
    plans = schedule(Batch(shares=(rows,)), ranks=ranks, budget=budget)
    assert plans == schedule(Batch(shares=(rows,)), ranks=ranks, budget=budget)
    assert sorted(id(row) for (share,) in plans for part in share.parts for row in part) == sorted(map(id, rows))
    assert len({len(share.parts) for (share,) in plans}) == 1
    assert {share.total for (share,) in plans} == {sum(length - 1 for length in lengths)}
    loads = [sum(len(row) for part in share.parts for row in part) for (share,) in plans]
    assert max(loads) - min(loads) <= max(lengths)


def test_one_rank_does_what_micro_batches_say():
    rows = tuple(row_of(length) for length in (9, 3, 9, 30))
    ((share,),) = schedule(Batch(shares=(rows,)), ranks=1, budget=40)
    assert [list(part) for part in share.parts] == micro_batches(rows, 40)


def row_of(length):
    record = trajectory(0, 0, version=0, reward=1)
    packed = Sequence.pack([1] * length, [1] * length, [-1.0] * length, [])
    return build_batch(
        [[trajectory(0, 0, version=0, reward=1, sequences=(packed,)), record]], updates=1, temperature=1.0
    ).shares[0][0]


def test_a_record_that_is_another_members_or_breaks_the_token_rules_is_named():
    good = trajectory(4, 1, version=3)
    assert record_trouble(ref(good), good, VOCAB) == ""
    assert "train-4-1-0" in record_trouble(ref(good, member=2), good, VOCAB)
    assert "vocabulary" in record_trouble(ref(good), good, 3)
    poisoned = trajectory(4, 1, version=3, reward=math.nan)
    assert "nan" in record_trouble(ref(poisoned), poisoned, VOCAB)


def test_data_without_engine_logprobs_or_stale_without_correction_is_refused():
    groups = [group(0, [1, 0])]
    assert step_trouble(manifest(), groups) == ""
    assert staleness(manifest(), groups) == 1
    assert "is_cap" in step_trouble(manifest(is_cap=0.0), groups)
    assert step_trouble(manifest(is_cap=0.0, position=4), groups) == ""
    silent = [[without_logprobs(t) for t in groups[0]]]
    assert "no engine logprobs" in step_trouble(manifest(), silent)
    assert "no record holds a token" in step_trouble(manifest(), [])


def without_logprobs(record):
    bare = Sequence(
        token_ids=record.sequences[0].token_ids,
        loss_mask=record.sequences[0].loss_mask,
        logprobs=bytes(len(record.sequences[0].logprobs)),
        spans=record.sequences[0].spans,
    )
    return trajectory(record.group, record.member, version=3, sequences=(bare,))


def learner(nonce, step, state="training", role="learner"):
    return Endpoint(
        incarnation=f"{role}-n-1-{nonce}",
        role=role,
        node="n",
        attempt=1,
        pid=1,
        pid_started=0.0,
        step=step,
        state=state,
    )


def test_deaths_count_learners_that_ended_neither_in_order_nor_by_their_own_word():
    seen = [
        learner("a", 7), learner("b", 7), learner("c", 7, state="ended"), learner("d", 8), learner("e", -1),
        learner("own", 7), learner("x", 7, role="engine"), learner("fenced", 7), learner("raised", 7),
        learner("full", 7),
    ]  # fmt: skip
    buried = {
        "learner-n-1-a": Obituary(incarnation="learner-n-1-a", code=-9, reason="killed"),
        "learner-n-1-fenced": Obituary(incarnation="learner-n-1-fenced", code=3, reason="fenced"),
        "learner-n-1-full": Obituary(incarnation="learner-n-1-full", code=2, reason="the disk is full"),
        "learner-n-1-raised": Obituary(incarnation="learner-n-1-raised", code=1, reason="raised"),
    }
    assert deaths(seen, buried, "learner-n-1-own") == {7: 3, 8: 1}


def evaluation(version, share):
    return Evaluation(version=version, n=10, passed=0, pass_at_1=share, stderr=0, by_domain={}, failed=0)


def test_weights_that_stay_are_exactly_the_roots():
    kept = weights_to_keep(
        20, 1, [15], [12, 10], {4: evaluation(4, 0.5), 8: evaluation(8, 0.5), 16: evaluation(16, 0.4)}
    )
    assert kept == {0, 8, 10, 12, 15, 18, 19, 20}
    assert weights_to_keep(1, 3, [], [], {}) == {0, 1}


def test_a_checkpoint_that_a_replay_would_restore_stays():
    assert checkpoints_to_keep([20, 40, 60, 80], 2, {}) == {60, 80}
    assert checkpoints_to_keep([20, 40, 60, 80], 2, {70: 20}) == {20, 60, 80}
    assert checkpoints_to_keep([20, 40, 60, 80], 2, {55: 20}) == {60, 80}


def test_lineages_rise_and_are_never_the_same():
    first = next_lineage("")
    assert first.startswith("1-")
    assert next_lineage(first).startswith("2-")
    assert next_lineage("") != first
