"""Who builds, of many who want the same: the state machine, with a clock of its own."""

import random

import pytest

from prorl_cli.images.contest import Claim, Contest, GiveUp, Reuse, Seen, Wait

GRACE = 60.0


def look(contest, seen, seconds, start=0.0, every=2.0):
    """Every move while the same is seen for a while."""
    return [contest.step(seen, start + every * step) for step in range(int(seconds / every))]


def test_nobody_is_there_so_the_first_number_is_claimed():
    assert Contest().step(Seen(), 0) == Claim(1)


def test_an_image_that_is_there_is_reused_unless_it_is_outdated():
    assert Contest().step(Seen(published=3, known=3, claim=3, ended="built"), 0) == Reuse(3)
    assert Contest(outdated=3).step(Seen(published=3, known=3, claim=3, ended="built"), 0) == Claim(4)
    assert Contest(outdated=3).step(Seen(published=4, known=4, claim=4, ended="built"), 0) == Reuse(4)


def test_a_damaged_image_is_built_under_a_number_above_all_that_were_given():
    assert Contest().step(Seen(known=7, claim=3, ended="built"), 0) == Claim(8)
    assert Contest().step(Seen(known=2, claim=3, ended="built"), 0) == Claim(4)


def test_a_holder_whose_counter_moves_is_waited_for_however_long_it_takes():
    contest = Contest()
    assert {contest.step(Seen(claim=1, beat=n), 2.0 * n) for n in range(10_000)} == {Wait(1)}


def test_a_silent_holder_is_followed_after_the_grace_and_not_before():
    contest = Contest()
    assert set(look(contest, Seen(claim=1, beat=5), GRACE)) == {Wait(1)}
    assert contest.step(Seen(claim=1, beat=5), GRACE + 2) == Claim(2)


def test_a_holder_that_beats_once_more_has_its_whole_grace_again():
    contest = Contest()
    look(contest, Seen(claim=1, beat=5), GRACE - 4)
    assert set(look(contest, Seen(claim=1, beat=6), GRACE, start=GRACE)) == {Wait(1)}


def test_a_follower_has_its_own_grace():
    contest = Contest()
    look(contest, Seen(claim=1, beat=5), GRACE + 4)
    assert set(look(contest, Seen(claim=2, beat=0), GRACE, start=GRACE + 6)) == {Wait(2)}


def test_nobody_is_followed_for_a_filesystem_that_stood_still():
    contest = Contest()
    contest.step(Seen(claim=1, beat=5), 0)
    assert contest.step(Seen(claim=1, beat=5), 10 * GRACE) == Wait(1)
    assert set(look(contest, Seen(claim=1, beat=5), GRACE, start=10 * GRACE)) == {Wait(1)}


@pytest.mark.parametrize("seen", [Seen(claim=1, gone=True), Seen(claim=1, ended="left")])
def test_a_holder_that_is_proven_dead_or_left_is_followed_at_once(seen):
    assert Contest().step(seen, 0) == Claim(2)


def test_who_waited_for_a_failure_fails_and_who_comes_later_tries_again():
    waiting = Contest()
    waiting.step(Seen(claim=1, beat=1), 0)
    assert waiting.step(Seen(claim=1, ended="failed"), 2) == GiveUp(1)
    assert Contest().step(Seen(claim=1, ended="failed"), 2) == Claim(2)


@pytest.mark.parametrize("seed", range(20))
def test_of_many_with_deaths_and_stops_each_ends_with_an_image_and_no_number_is_won_twice(seed):
    """Ten callers in a world where holders die, stop and come back; every number has one winner at most."""
    chance = random.Random(seed)
    won, beats, ended, stopped, dead, published = {}, {}, {}, set(), set(), 0
    callers = {name: Contest(grace_s=GRACE) for name in range(10)}
    started, done, now = {}, set(), 0.0
    while len(done | dead) < len(callers):
        now += 2.0
        assert now < 100_000
        for name, contest in callers.items():
            if name in done or name in dead or name in stopped:
                stopped -= {name} if chance.random() < 0.02 else set()
                continue
            mine = started.get(name)
            if mine:
                beats[mine] += 1
                if len(dead) < 5 and chance.random() < 0.01:
                    dead.add(name)
                elif chance.random() < 0.02:
                    stopped.add(name)
                elif chance.random() < 0.05:
                    published = max(published, mine)
                    ended[mine] = "built"
                    del started[name]
                continue
            claim = max(won, default=0)
            seen = Seen(
                published=published, known=published, claim=claim, beat=beats.get(claim, 0), ended=ended.get(claim, "")
            )
            move = contest.step(seen, now)
            if isinstance(move, Reuse):
                done.add(name)
            if isinstance(move, Claim) and move.number not in won:
                won[move.number], beats[move.number], started[name] = name, 0, move.number
    assert published
