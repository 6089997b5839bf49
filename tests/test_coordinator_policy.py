"""The coordinator's single policies: what is drawn, who gets it, what is given up and when, what is evaluated."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.coordinator.evaluation import Evaluator, due
from prorl_cli.coordinator.groups import MOVES, RETRY_PAUSE_S
from prorl_cli.coordinator.machine import Facts, Machine, Origin
from prorl_cli.coordinator.placement import place
from prorl_cli.coordinator.sampler import Sampler, held_out, split
from prorl_cli.coordinator.watchdog import Watchdog
from prorl_cli.spool.members import Endpoint
from prorl_cli.trajectory import Cancel, ErrorClass, GroupRequest, Purpose
from tests.coordinator_world import make_entry, make_recipe

NAME = "coordinator-n-1-00000000"
A, B = "rollout-a-1-0000000a", "rollout-b-1-0000000b"
OLD = "rollout-a-0-0000000c"


def machine(recipe=None, *, last=None, requests=(), entries=(), attempt=1, restore_to=-1):
    origin = Origin(
        name=NAME, attempt=attempt, last=last, requests=requests, entries=entries, evaluated=frozenset(),
        restore_to=restore_to,
    )  # fmt: skip
    return Machine(recipe or make_recipe(), origin)


def at(now, *, weights=0, alive=(A,), gone=()):
    return Facts(now=now, weights=weights, alive=frozenset(alive), gone=frozenset(gone))


def requests_of(decision):
    return [(worker, request) for worker, request in decision.sends if isinstance(request, GroupRequest)]


# ── sampler ──


def test_a_draw_is_the_same_whenever_and_in_whatever_order_it_is_asked_for():
    tasks = make_recipe().tasks
    first, second = Sampler(tasks, 5), Sampler(tasks, 5)
    forwards = [first.draw(group) for group in range(200)]
    assert [second.draw(group) for group in reversed(range(200))] == forwards[::-1]
    assert Sampler(tasks, 6).draw(0) != forwards[0]


def test_tasks_are_drawn_by_weight_and_no_item_of_a_task_twice():
    sampler = Sampler(make_recipe().tasks, 1)
    draws = [sampler.draw(group) for group in range(3000)]
    domains = Counter(draw.task.domain for draw in draws)
    assert 0.28 < domains["sums"] / 3000 < 0.39
    for domain, count in domains.items():
        assert [draw.task.index for draw in draws if draw.task.domain == domain] == list(range(count))
    assert len({draw.seed for draw in draws}) == 3000


@given(st.integers(0, 500), st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_a_split_is_whole_and_within_one_of_its_share(n, weights):
    parts = split(n, weights)
    assert sum(parts) == n
    assert all(abs(part - n * weight / sum(weights)) < 1 + 1e-6 for part, weight in zip(parts, weights, strict=True))


def test_held_out_items_are_the_same_at_every_version_and_split_by_weight():
    recipe = make_recipe()
    items = held_out(recipe.tasks, 9, 3)
    assert [item.task.domain for item in items] == ["sums"] * 3 + ["chains"] * 6
    assert items == held_out(recipe.tasks, 9, 3)


# ── placement ──


def test_a_group_goes_whole_to_the_worker_with_most_room_and_is_split_only_where_no_one_has_room():
    assert place((0, 1, 2), {"b": 4, "a": 4, "c": 3}) == [("a", (0, 1, 2))]
    free = {"a": 2, "b": 1, "c": -3}
    assert place((0, 1, 2, 3), free) == [("a", (0, 1)), ("b", (2,))]
    assert free == {"a": 0, "b": 0, "c": -3}


# ── members: errors, deaths, lateness ──


def first_group(m, now=1.0):
    return next((worker, r) for worker, r in requests_of(m.decide(at(now))) if r.group == 0)


def test_an_error_is_retried_after_a_pause_within_the_budget_then_dropped_by_its_class():
    m = machine(make_recipe(rollout={"run": {"slots": 64}}))
    _, request = first_group(m)
    m.take(make_entry(A, 0, request, 1, error_class=ErrorClass.ENGINE))
    assert not [r for _, r in requests_of(m.decide(at(1.5))) if r.group == 0]
    ((_, again),) = [s for s in requests_of(m.decide(at(1.5 + RETRY_PAUSE_S))) if s[1].group == 0]
    assert (again.members, again.tries) == ((1,), (1,))
    m.take(make_entry(A, 1, again, 1, error_class=ErrorClass.VERIFIER))
    assert m.batcher.groups[0].members[1].dropped == "error:verifier"


def test_a_dead_worker_costs_no_retry_but_its_members_go_to_another_until_the_cap_on_moves():
    m = machine(make_recipe(rollout={"retries": 0, "deadline": "1h"}))
    first_group(m)
    workers, now = [A, B], 2.0
    for move in range(1, MOVES + 1):
        dead, alive = workers[(move + 1) % 2], workers[move % 2]
        now += 1
        moved = [(w, r) for w, r in requests_of(m.decide(at(now, alive=[alive], gone=[dead]))) if r.group == 0]
        assert [(worker, r.tries) for worker, r in moved] == [(alive, (move, move, move))]
    m.decide(at(now + 1, alive=[A], gone=[A, B]))
    assert (m.batcher.settled[0].group, m.batcher.settled[0].reason) == (0, "error:worker")


def test_a_withdrawn_straggler_stays_withdrawn_over_a_restart_and_the_clock_stands_still_without_workers():
    m = machine()
    sent = list(requests_of(m.decide(at(1.0))))
    request = next(r for _, r in sent if r.group == 0)
    entries = [make_entry(A, n, request, n, reward=float(n)) for n in (0, 1)]
    for entry in entries:
        m.take(entry)
    m.decide(at(2.0))
    m.decide(at(500.0, alive=()))
    assert not m.batcher.groups[0].resolved
    late = m.decide(at(560.0))
    cancels = [(worker, c) for worker, c in late.sends if isinstance(c, Cancel)]
    assert (A, Cancel(group=0, purpose=Purpose.TRAIN, members=(2,), reason="late")) in cancels
    again = machine(requests=[*sent, *cancels], entries=entries)
    again.decide(at(600.0))
    assert again.batcher.ready[0].group == 0
    assert [(d.reason, d.members) for d in again.batcher.ready[0].dropped] == [("late", (2,))]


def test_a_restart_asks_nobody_again_whose_worker_lives_and_replaces_the_dead():
    m = machine()
    sent = requests_of(m.decide(at(1.0, alive=[A, B])))
    assert {worker for worker, _ in sent} == {A, B}
    again = machine(requests=sent)
    assert not requests_of(again.decide(at(2.0, alive=[A, B])))
    assert again.load() == m.load()
    moved = requests_of(again.decide(at(3.0, alive=[A], gone=[B])))
    assert {worker for worker, _ in moved} == {A}
    assert all(set(request.tries) == {1} for _, request in moved)


def test_what_a_rival_had_finished_before_a_group_was_admitted_here_is_used():
    recipe = make_recipe(rollout={"groups_per_step": 1, "max_staleness": 0, "run": {"slots": 64}})
    rival = machine(recipe)
    ((_, request),) = requests_of(rival.decide(at(1.0)))
    m = machine(recipe)
    for member in request.members:
        m.take(make_entry(B, member, request, member, reward=float(member)))
    m.decide(at(1.0))
    assert [ref.writer for ref in m.decide(at(2.0)).step.records] == [B] * 3


def test_a_second_finish_is_named_surplus_once_even_over_a_restart():
    recipe = make_recipe(rollout={"groups_per_step": 1, "run": {"slots": 64}})
    m = machine(recipe)
    request = requests_of(m.decide(at(1.0)))[0][1]
    entries = [make_entry(A, n, request, n, reward=float(n)) for n in request.members]
    for entry in entries:
        m.take(entry)
    step = m.decide(at(2.0)).step
    second = make_entry(B, 0, request, 1, reward=1.0)
    again = machine(recipe, last=step, entries=[*entries, second])
    assert again.batcher.lost == {"surplus": 1}
    assert machine(recipe, last=step, entries=entries).batcher.lost == {}


# ── steps ──


def settle_group(m, requests, group, rewards, seq):
    request = next(r for _, r in requests if r.group == group)
    for member, reward in enumerate(rewards):
        m.take(make_entry(A, seq + member, request, member, reward=reward))


def test_a_step_is_every_number_of_the_recipe_and_the_groups_in_admission_order():
    recipe = make_recipe(rollout={"run": {"slots": 64}}, learner={"steps": 4, "lr": 0.5, "lr_warmup": 2, "updates": 3})
    m = machine(recipe)
    sent = requests_of(m.decide(at(1.0)))
    settle_group(m, sent, 1, (0.0, 1.0, 1.0), 0)
    assert m.decide(at(2.0)).step is None
    settle_group(m, sent, 0, (1.0, 0.0, 0.0), 3)
    step = m.decide(at(3.0)).step
    assert [refs[0].group for refs in step.groups] == [0, 1]
    assert (step.position, step.learning_rate, step.updates, step.frontier) == (1, 0.25, 3, 2)
    assert (step.clip_low, step.clip_high, step.kl_beta, step.is_cap) == (0.2, 0.28, 1e-3, 2.0)


def test_the_next_step_waits_for_the_weights_of_the_last():
    m = machine(make_recipe(rollout={"run": {"slots": 64}}))
    sent = requests_of(m.decide(at(1.0)))
    for group in range(4):
        settle_group(m, sent, group, (0.0, 1.0, 1.0), 3 * group)
    m.published(m.decide(at(2.0)).step)
    waits = m.decide(at(3.0))
    assert (waits.step, waits.waiting) == (None, "weights 1")
    assert m.decide(at(4.0, weights=1)).step.position == 2


def zero_variance(recipe, informative):
    """Settle groups without a signal, and those of `informative` with one, until something is decided."""
    m, seq = machine(recipe), 0
    for now in range(1, 100):
        decision = m.decide(at(float(now)))
        if decision.publishes:
            return decision
        for worker, request in requests_of(decision):
            for member in request.members:
                reward = float(member) if request.group in informative else 0.0
                m.take(make_entry(worker, seq, request, member, reward=reward))
                seq += 1
    raise AssertionError("neither a step nor starved")


def test_resampling_is_capped_then_a_step_is_shorter():
    step = zero_variance(make_recipe(), informative={3}).step
    assert [refs[0].group for refs in step.groups] == [3]
    assert len([d for d in step.dropped if d.reason == "zero_variance"]) == 7


def test_behind_a_straggler_no_more_groups_are_admitted_than_steps_may_settle():
    m, seq, asked = machine(make_recipe(rollout={"deadline": "1h", "run": {"slots": 64}})), 0, set()
    for now in range(1, 100):
        for worker, request in requests_of(m.decide(at(float(now)))):
            asked.add(request.group)
            for member in request.members if request.group else request.members[1:]:
                m.take(make_entry(worker, seq, request, member))
                seq += 1
    assert asked == set(range(16)), "two steps of at most eight"


def test_no_signal_at_all_is_starved_in_words():
    outcome = zero_variance(make_recipe(), informative=()).outcome
    assert outcome.state == "starved"
    assert "8 groups were settled for step 1" in outcome.reason
    assert "chains: 6 all 0; sums: 2 all 0" in outcome.reason


def test_a_resume_after_starving_tries_again_before_it_starves_again():
    m = machine()
    sent = [(OLD, request) for _, request in requests_of(m.decide(at(1.0)))]
    entries = [make_entry(OLD, 3 * r.group + n, r, n) for _, r in sent for n in r.members]
    again = machine(requests=sent, entries=entries)
    decision = again.decide(at(2.0))
    assert decision.outcome is None
    assert again.batcher.head > 0
    assert requests_of(decision)


def test_a_restore_comes_first_and_once_and_raises_the_oldest_version():
    m = machine(restore_to=0)
    step = m.decide(at(1.0)).step
    assert (step.kind, step.restore_to, step.position) == ("restore", 0, 1)
    m.published(step)
    assert not m.decide(at(2.0, weights=0)).sends
    sent = requests_of(m.decide(at(3.0, weights=1)))
    assert {request.min_version for _, request in sent} == {1}
    assert machine(last=step, restore_to=0).decide(at(4.0, weights=1)).step is None


# ── evaluation ──


def test_evaluations_are_due_before_between_and_after():
    recipe = make_recipe(eval={"n": 4, "every": 3}, learner={"steps": 7})
    assert [version for version in range(8) if due(recipe, version)] == [0, 3, 6, 7]
    assert not due(make_recipe(), 0)


def test_an_evaluation_counts_failures_apart_and_holds_the_next_step():
    recipe = make_recipe(eval={"n": 4}, rollout={"retries": 0})
    evaluator = Evaluator(recipe, 0)
    sent = evaluator.hand_out({A: 9}, 0.0)
    assert [(r.min_version, r.members, r.group) for _, r in sent] == [(0, (0,), item) for item in range(4)]
    for seq, ((_, request), reward) in enumerate(zip(sent[:3], (1.0, 0.995, 0.5), strict=True)):
        evaluator.take(make_entry(A, seq, request, 0, reward=reward), 1.0)
    assert not evaluator.done
    evaluator.take(make_entry(A, 3, sent[3][1], 0, error_class=ErrorClass.VERIFIER), 1.0)
    found = evaluator.summary()
    assert evaluator.done
    assert (found.n, found.failed, found.passed) == (3, 1, 2.0)
    assert found.pass_at_1 == pytest.approx(2 / 3)
    assert set(found.by_domain) == {"sums", "chains"}


def test_no_steps_means_one_evaluation_and_done():
    m = machine(make_recipe(eval={"n": 2}, learner={"steps": 0}))
    decision = m.decide(at(1.0))
    assert {request.purpose for _, request in requests_of(decision)} == {Purpose.EVAL}
    assert decision.waiting == "evaluation of weights 0: 0/2"
    for seq, (worker, request) in enumerate(requests_of(decision)):
        m.take(make_entry(worker, seq, request, 0, reward=1.0))
    assert m.decide(at(2.0)).evaluation.pass_at_1 == 1.0
    m.evaluated()
    assert m.decide(at(3.0)).outcome.state == "done"


# ── watchdog ──


def peer(name, beat, role="rollout", state="ready", attempt=1):
    return Endpoint(incarnation=name, role=role, node="n", attempt=attempt, pid=1, pid_started=0.0, beat=beat,
                    state=state)  # fmt: skip


def test_obituaries_announced_ends_and_older_attempts_are_dead_at_once():
    dog = Watchdog(NAME, 1)
    dog.observe(0.0, [peer(A, 1), peer(B, 1, state="ended")], {}, [A, B, OLD])
    assert dog.alive == {A}
    assert dog.gone([A, B, OLD]) == {B, OLD}
    dog.observe(1.0, [peer(A, 2)], {A}, [A])
    assert dog.gone([A]) == {A}
    assert not dog.alive


def test_silence_is_death_after_the_grace_unless_the_observer_itself_stalled():
    dog = Watchdog(NAME, 1, grace_s=10)

    def watch(now, own, a):
        dog.observe(now, [peer(NAME, own, role="coordinator"), peer(A, a), peer(B, int(now))], (), [A, B])
        return dog.gone([A, B])

    for now in range(30):
        assert watch(float(now), own=0, a=0) == frozenset()
    found = [now for now in range(30, 60) if watch(float(now), own=now, a=0)]
    assert found[0] == 40
    assert dog.alive == {B}
    assert watch(60.0, own=60, a=1) == frozenset()
    assert dog.alive == {A, B}


def test_a_draining_worker_gets_nothing_new_and_keeps_what_it_has():
    dog = Watchdog(NAME, 1)
    dog.observe(0.0, [peer(A, 1, state="draining")], {}, [A])
    assert not dog.alive
    assert not dog.gone([A])
