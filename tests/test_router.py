"""The pure router: what it grants, what it refuses in words, and what never happens whatever the order of events."""

import random
from collections import Counter
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_cli.router import Ask, Gate, Grant, Release, Router
from prorl_cli.router.state import LEASE_TTL_S, PERMIT_TTL_S, SESSIONS


def router(*versions, seed=0):
    made = Router(random.Random(seed), "r")
    for number, version in enumerate(versions):
        seen(made, f"e{number}", version)
    return made


def seen(made, name, version=0, *, now=0.0, state="ready", tokens=0):
    made.engine_seen(now, name, f"http://{name}", Gate(state=state, version=version, in_flight_tokens=tokens))


def grant(made, session="s", tokens=100, *, now=0.0, **ask):
    decision = made.lease(now, Ask(session=session, tokens=tokens, **ask))
    assert isinstance(decision, Grant), decision
    return decision


def refusal(made, session="s", tokens=100, *, now=0.0, **ask):
    decision = made.lease(now, Ask(session=session, tokens=tokens, **ask))
    assert isinstance(decision, str), decision
    return decision


def loads(made, now=0.0):
    return {name: facts["leased_tokens"] for name, facts in made.status(now)["engines"].items()}


# ── what is granted ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_refusal_says_in_words_what_is_missing():
    made = router()
    assert refusal(made) == "no engine has joined yet"
    seen(made, "a", state="loading", version=-1)
    seen(made, "b", state="draining")
    assert refusal(made) == "no engine serves: 1 draining, 1 loading"
    seen(made, "a", 4)
    assert refusal(made, min_version=5) == "no engine holds version 5 or newer (they hold 4)"
    assert refusal(made, version=3) == "no engine holds exactly version 3 (they hold 4)"
    made.engine_missed("a")
    made.engine_missed("a")
    assert refusal(made) == "no engine serves: 1 draining, 1 not answering"


def test_idle_engines_share_new_sessions_evenly_by_chance():
    made = router(0, 0, 0)
    counts = Counter()
    for number in range(300):
        lease = grant(made, f"s{number}")
        counts[lease.engine] += 1
        made.release(0.0, Release(lease=lease.lease))
    assert set(counts) == {"e0", "e1", "e2"}
    assert min(counts.values()) > 60


def test_the_engine_with_fewer_tokens_in_flight_wins_however_many_requests_it_has():
    made = router(0, 0)
    heavy = grant(made, "long", 10_000)
    others = [grant(made, f"short{number}", 100).engine for number in range(20)]
    assert heavy.engine not in others


def test_a_session_stays_on_its_engine_until_that_costs_clearly_more():
    made = router(0, 0)
    home = grant(made, "s", 100).engine
    assert grant(made, "s", 100).engine == home, "one turn like this one is no reason to leave a warm prefix"
    grant(made, "s", 5000)
    assert grant(made, "s", 100).engine != home


def test_a_faster_engine_gets_more_tokens_in_proportion():
    made = router(0, 0)
    for engine, speed in (("e0", 300), ("e1", 100)):
        for _ in range(40):
            lease = grant(made, "only-" + engine, 1)
            while lease.engine != engine:
                made.release(0.0, Release(lease=lease.lease, ok=True))
                lease = grant(made, f"{random.random()}", 1)
            made.release(0.0, Release(lease=lease.lease, tokens=speed * 10, seconds=10.0))
    seen(made, "e0", now=0.1)
    for number in range(400):
        grant(made, f"n{number}", 100, now=0.1)
    held = loads(made, 0.1)
    assert 2.5 < held["e0"] / held["e1"] < 3.5


def test_an_engine_measured_slow_is_tried_again_after_a_while():
    made = router(0, 0)
    for lease in (grant(made, "s", 1), grant(made, "t", 1)):
        made.release(0.0, Release(lease=lease.lease, tokens=10 if lease.engine == "e0" else 1000, seconds=100.0))
    seen(made, "e0", now=1.0)
    before = made.status(1.0)["engines"]
    seen(made, "e0", now=300.0)
    after = made.status(300.0)["engines"]
    assert before["e0"]["speed"] < before["e1"]["speed"] / 4
    assert after["e0"]["speed"] > after["e1"]["speed"] / 1.1


def test_a_session_avoids_the_engine_that_has_just_failed_it():
    made = router(0, 0)
    for number in range(20):
        failed = grant(made, f"s{number}")
        made.release(0.0, Release(lease=failed.lease, ok=False))
        assert grant(made, f"s{number}").engine != failed.engine
        seen(made, failed.engine)


def test_a_single_engine_still_serves_after_a_failure_and_while_it_swaps():
    made = router(0)
    failed = grant(made)
    made.release(0.0, Release(lease=failed.lease, ok=False))
    assert grant(made).engine == "e0"
    assert made.permit(0.0, "e0", 1)
    assert grant(made).engine == "e0"
    seen(made, "e0", 0, state="paused")
    assert grant(made).engine == "e0"


def test_an_engine_that_swaps_gets_no_new_lease_while_another_one_fits():
    made = router(0, 0)
    assert made.permit(0.0, "e0", 1)
    assert {grant(made, f"s{number}", 1000).engine for number in range(30)} == {"e1"}
    seen(made, "e0", 1)
    assert {grant(made, f"t{number}", 1000).engine for number in range(20)} == {"e0"}


def test_two_missed_beats_put_an_engine_out_and_one_answer_brings_it_back():
    made = router(0, 0)
    made.engine_missed("e0")
    assert {grant(made, f"a{number}").engine for number in range(20)} == {"e1"}
    made.engine_missed("e1")
    made.engine_missed("e0")
    assert {grant(made, f"b{number}").engine for number in range(20)} == {"e1"}
    seen(made, "e0")
    assert grant(made, "c", 10).engine == "e0"


def test_an_engine_that_left_takes_its_load_along_and_comes_back_empty():
    made = router(0, 0)
    gone = [grant(made, f"s{number}") for number in range(10)]
    made.engine_gone("e0")
    assert set(loads(made)) == {"e1"}
    seen(made, "e0")
    for lease in gone:
        made.release(0.0, Release(lease=lease.lease))
    assert loads(made) == {"e0": 0, "e1": 0}


def test_after_a_restart_the_gates_own_tokens_stand_in_for_unknown_leases():
    made = router(0, 0)
    seen(made, "e0", tokens=5000)
    assert {grant(made, f"s{number}").engine for number in range(20)} == {"e1"}
    seen(made, "e0", tokens=0)
    assert grant(made, "t").engine == "e0"


def test_a_lease_expires_unless_renewed():
    made = router(0)
    kept, lost = grant(made, "kept"), grant(made, "lost")
    assert made.renew(LEASE_TTL_S / 2, kept.lease)
    made.expire(LEASE_TTL_S + 1)
    assert not made.renew(LEASE_TTL_S + 1, lost.lease)
    assert made.renew(LEASE_TTL_S + 1, kept.lease)
    assert loads(made, LEASE_TTL_S + 1) == {"e0": 100}


def test_sessions_are_forgotten_not_hoarded():
    made = router(0)
    for number in range(SESSIONS + 10):
        made.release(0.0, Release(lease=grant(made, f"s{number}").lease))
    assert made.status(0.0)["sessions"] == SESSIONS


# ── versions and permits ──────────────────────────────────────────────────────────────────────────────────────


def test_leases_respect_minimum_and_exact_versions():
    made = router(3, 4, 5)
    assert {grant(made, f"a{n}", min_version=4).engine for n in range(30)} == {"e1", "e2"}
    assert {grant(made, f"b{n}", version=3).engine for n in range(30)} == {"e0"}


def test_an_exact_lease_holds_its_engine_and_is_not_granted_on_one_that_swaps():
    made = router(3)
    lease = grant(made, version=3)
    assert not made.permit(0.0, "e0", 4)
    made.release(0.0, Release(lease=lease.lease))
    assert made.permit(0.0, "e0", 4)
    assert refusal(made, version=3) == "the engines that hold version 3 are swapping away from it"


@pytest.mark.parametrize(("engines", "at_once"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_at_most_half_of_the_engines_swap_at_a_time(engines, at_once):
    made = router(*[0] * engines)
    granted = [name for name in sorted(made.engines) if made.permit(0.0, name, 1)]
    assert len(granted) == at_once
    assert made.permit(1.0, granted[0], 1), "the holder renews by asking again"
    made.release_permit(1.0, granted[0])
    assert made.permit(1.0, f"e{engines - 1}", 1)


def test_a_permit_ends_by_time_by_proof_and_with_its_engine():
    made = router(0, 0)
    assert made.permit(0.0, "e0", 1)
    assert not made.permit(PERMIT_TTL_S - 1, "e1", 1)
    assert made.permit(PERMIT_TTL_S + 1, "e1", 1)
    seen(made, "e1", 1)
    assert made.permit(PERMIT_TTL_S + 2, "e0", 1)
    made.engine_gone("e0")
    assert made.permit(PERMIT_TTL_S + 3, "e1", 2)


def test_an_engine_paused_under_an_earlier_routers_permit_counts_as_swapping():
    made = router(0, 0)
    seen(made, "e0", state="paused")
    assert not made.permit(0.0, "e1", 1)
    assert made.permit(0.0, "e0", 1)


# ── whatever the order of events ──────────────────────────────────────────────────────────────────────────────

NAMES = ("a", "b", "c", "d")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("seen"), st.sampled_from(NAMES), st.integers(0, 3), st.sampled_from(["ready", "paused"])),
        st.tuples(st.just("missed"), st.sampled_from(NAMES)),
        st.tuples(st.just("gone"), st.sampled_from(NAMES)),
        st.tuples(st.just("lease"), st.integers(0, 5), st.integers(1, 500), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("release"), st.integers(0, 20), st.booleans()),
        st.tuples(st.just("renew"), st.integers(0, 20)),
        st.tuples(st.just("permit"), st.sampled_from(NAMES), st.integers(0, 4)),
        st.tuples(st.just("unpermit"), st.sampled_from(NAMES)),
        st.tuples(st.just("time"), st.floats(0.1, 40.0)),
    ),
    max_size=60,
)


class Replay:
    """Plays events into a router and keeps its own account of open leases and permits to compare with."""

    def __init__(self):
        self.router = Router(random.Random(0), "r")
        self.now = 0.0
        self.versions = {}
        self.down = Counter()
        self.open = {}
        self.ever = []

    def play(self, kind, *args):
        getattr(self, kind)(*args)
        self.open = {key: held for key, held in self.open.items() if held[2] > self.now}
        wanted = Counter()
        for engine, tokens, _ in self.open.values():
            wanted[engine] += tokens
        assert loads(self.router, self.now) == {name: wanted[name] for name in self.versions}

    def seen(self, name, version, state):
        version = max(version, self.versions.get(name, 0))
        self.versions[name] = version
        self.down[name] = 0
        seen(self.router, name, version, now=self.now, state=state)

    def missed(self, name):
        self.router.engine_missed(name)
        self.down[name] += 1

    def gone(self, name):
        self.router.engine_gone(name)
        self.versions.pop(name, None)
        self.open = {key: held for key, held in self.open.items() if held[0] != name}

    def lease(self, session, tokens, version, exact):
        ask = Ask(session=f"s{session}", tokens=tokens, min_version=version, version=version if exact else None)
        decision = self.router.lease(self.now, ask)
        if isinstance(decision, str):
            return
        held = self.versions[decision.engine]
        assert decision.version == held and (held == version if exact else held >= version)
        assert self.down[decision.engine] < 2
        assert decision.lease not in self.ever
        self.ever.append(decision.lease)
        self.open[decision.lease] = (decision.engine, tokens, self.now + LEASE_TTL_S)

    def release(self, index, ok):
        if self.ever:
            name = self.ever[index % len(self.ever)]
            self.router.release(self.now, Release(lease=name, tokens=5, seconds=1.0, ok=ok))
            if name in self.open and not ok:
                self.down[self.open[name][0]] += 1
            self.open.pop(name, None)

    def renew(self, index):
        if self.ever:
            name = self.ever[index % len(self.ever)]
            assert self.router.renew(self.now, name) == (name in self.open)
            if name in self.open:
                self.open[name] = (*self.open[name][:2], self.now + LEASE_TTL_S)

    def permit(self, name, version):
        before = self.holders()
        if self.router.permit(self.now, name, version) and name not in before:
            assert len(self.holders()) <= max(1, len(self.versions) // 2)

    def unpermit(self, name):
        self.router.release_permit(self.now, name)

    def time(self, seconds):
        self.now += seconds
        self.open = {key: held for key, held in self.open.items() if held[2] > self.now}

    def holders(self):
        return {name for name, facts in self.router.status(self.now)["engines"].items() if facts["permit"]}


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_load_equals_open_leases_and_no_rule_is_broken_in_any_order_of_events(events):
    replay = Replay()
    for event in events:
        replay.play(*event)
    replay.time(LEASE_TTL_S + PERMIT_TTL_S + 1)
    replay.play("time", 0.1)
    assert not replay.open and replay.router.status(replay.now)["leases"] == 0


# ── fairness ──────────────────────────────────────────────────────────────────────────────────────────────────


class Machine:
    """An engine that decodes `slots` sequences at once, each at `rate` tokens a second; the rest queue."""

    def __init__(self, rate, slots=8):
        self.rate, self.slots, self.work = rate, slots, []

    def tick(self, dt):
        for job in self.work[: self.slots]:
            job["left"] -= self.rate * dt
        done = [job for job in self.work if job["left"] <= 0]
        self.work = [job for job in self.work if job["left"] > 0]
        return done


def makespan(choose, finished, turns, rates, concurrent=64, dt=0.05):
    """Seconds until every session has taken its turns; `turns[i]` are the lengths of session i's turns."""
    machines = {f"e{number}": Machine(rate) for number, rate in enumerate(rates)}
    waiting, clock, running = [list(lengths) for lengths in turns], 0.0, 0
    queue = list(range(len(turns)))
    while queue or running:
        while queue and running < concurrent:
            session = queue.pop(0)
            length = waiting[session].pop(0)
            name, ticket = choose(clock, session, length)
            machines[name].work.append({"left": length, "of": session, "n": length, "at": clock, "ticket": ticket})
            running += 1
        clock += dt
        for name, machine in machines.items():
            for job in machine.tick(dt):
                running -= 1
                finished(clock, name, job)
                if waiting[job["of"]]:
                    queue.insert(0, job["of"])
    return clock


def routed(turns, rates):
    made = router(*[0] * len(rates))
    polled = [0.0]

    def choose(clock, session, length):
        if clock >= polled[0] + 1.0:
            polled[0] = clock
            for name in sorted(made.engines):
                seen(made, name, now=clock)
        lease = grant(made, f"s{session}", 256, now=clock)
        return lease.engine, lease.lease

    def finished(clock, name, job):
        made.release(clock, Release(lease=job["ticket"], tokens=job["n"], seconds=clock - job["at"]))

    return makespan(choose, finished, turns, rates)


def round_robin(turns, rates):
    home, count = {}, [0]

    def choose(clock, session, length):
        if session not in home:
            home[session] = f"e{count[0] % len(rates)}"
            count[0] += 1
        return home[session], None

    return makespan(choose, lambda *_: None, turns, rates)


def skewed(seed):
    rng = random.Random(seed)
    return [[int(min(1000, rng.lognormvariate(4.5, 1.2))) + 1 for _ in range(rng.randint(1, 6))] for _ in range(300)]


def test_skewed_lengths_and_one_slow_engine_finish_sooner_than_round_robin():
    def ratio(rates):
        return mean(routed(skewed(seed), rates) / round_robin(skewed(seed), rates) for seed in range(3))

    even, uneven = ratio([100, 100, 100, 100]), ratio([100, 100, 100, 33])
    print(f"makespan against sticky round-robin: equal engines {even:.2f}, one three times slower {uneven:.2f}")
    assert even <= 1.05
    assert uneven <= 0.65
