"""Death verdicts from counters and the observer's own clock: never in a window in which the filesystem stood still."""

import random

from prorl_cli.fsio import DeathJudge

GRACE = 30.0


class World:
    """Peers that beat every 2 s and an observer that looks and writes every 2 s; `frozen` peers do not beat, a
    `stalled` filesystem shows nothing new and takes no writes."""

    def __init__(self, *names):
        self.judge = DeathJudge(GRACE)
        self.beats = dict.fromkeys(names, 0)
        self.now = 1000.0
        self.dead = set()
        self.ever = set()

    def run(self, seconds, frozen=(), stalled=False, writes=True):
        for _ in range(int(seconds / 2)):
            self.now += 2
            for name in self.beats:
                if name not in frozen and not stalled:
                    self.beats[name] += 1
                self.judge.observe(name, self.beats[name], self.now)
            if writes and not stalled:
                self.judge.own_write(self.now)
            self.dead = self.judge.dead(self.now)
            self.ever |= self.dead
        return self


def test_a_peer_that_stops_beating_is_dead_after_the_grace_and_not_before():
    world = World("a", "b", "c").run(20)
    assert world.run(GRACE - 2, frozen="b").ever == set()
    assert world.run(4, frozen="b").dead == {"b"}


def test_two_of_three_may_die_together():
    assert World("a", "b", "c").run(10).run(GRACE + 4, frozen="ab").dead == {"a", "b"}


def test_a_lone_peer_is_judged_by_the_observers_own_writes():
    assert World("a").run(10).run(GRACE + 4, frozen="a").dead == {"a"}
    world = World("a").run(10).run(3 * GRACE, frozen="a", stalled=True)
    assert world.run(GRACE - 4, frozen="a").ever == set()
    assert world.run(6, frozen="a").dead == {"a"}


def test_nobody_is_dead_while_the_observers_own_writes_stall_nor_right_after():
    world = World("a", "b", "c").run(10).run(5 * GRACE, stalled=True)
    assert world.ever == set()
    assert world.run(GRACE - 4, frozen="b").ever == set()
    assert world.run(6, frozen="b").dead == {"b"}


def test_nobody_is_dead_while_all_stall_together_nor_when_the_first_one_moves_again():
    world = World("a", "b", "c").run(10).run(5 * GRACE, frozen="abc")
    assert world.ever == set()
    assert world.run(GRACE - 4, frozen="bc").ever == set()
    assert world.run(8, frozen="bc").dead == {"b", "c"}


def test_a_stall_that_begins_between_two_beats_kills_nobody():
    """Beats are staggered: one peer's last beat before a stall is older than another's."""
    judge = DeathJudge(GRACE)
    for second in range(200):
        now = float(second)
        judge.own_write(now)
        for offset, name in enumerate("abcd"):
            visible = min(second, 100)
            judge.observe(name, (visible + offset) // 4, now)
        assert judge.dead(now) == set()


def test_a_judge_that_never_wrote_condemns_nobody():
    world = World("a", "b").run(10, writes=False).run(3 * GRACE, frozen="a", writes=False)
    assert world.ever == set()


def test_a_judge_that_did_not_look_condemns_nobody():
    world = World("a", "b").run(10)
    for _ in range(100):
        world.now += 2
        world.judge.own_write(world.now)
        assert world.judge.dead(world.now) == set()


def test_a_verdict_stands_until_the_beat_moves_or_the_peer_is_forgotten():
    world = World("a", "b").run(10).run(GRACE + 4, frozen="a")
    assert world.dead == {"a"}
    assert world.run(4).dead == set()
    world.run(GRACE + 4, frozen="a")
    world.judge.forget("a")
    assert world.judge.dead(world.now) == set()


def test_the_last_one_left_is_judged_after_the_others_died():
    world = World("a", "b").run(10).run(GRACE + 4, frozen="a")
    assert world.run(GRACE + 4, frozen="ab").dead == {"a", "b"}


def test_over_random_histories_the_living_are_never_condemned_and_the_dead_always_are():
    for seed in range(200):
        rng = random.Random(seed)
        names = [f"peer{n}" for n in range(rng.randrange(2, 6))]
        doomed = set(rng.sample(names, rng.randrange(len(names))))
        world = World(*names).run(rng.randrange(4, 40))
        for _ in range(rng.randrange(4)):
            world.run(rng.randrange(0, 200), stalled=rng.random() < 0.5)
        assert world.ever == set()
        world.run(3 * GRACE, frozen=doomed)
        assert world.dead == doomed
