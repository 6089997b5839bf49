"""Who builds a key, of many who want it: a state machine fed what one of them sees, and its own clock; pure.

Claims are numbered, each number is won once, and the highest counts. A claim is over when its holder said so, is
proven dead, or is silent by the observer's own clock; then the next number is open. An image carries its claim's
number: what a stale holder publishes after all lies beside or below its successor's, never over it. Refuses to build
what somebody else was just seen to fail at. Called by `Store.build`.
"""

from __future__ import annotations

from dataclasses import dataclass

from prorl_cli.fsio import DeathJudge

GRACE_S = 60.0
"""A holder that is silent for this long has lost its claim; attribute caches of NFS hold for up to a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look: the highest number of a usable image, of any reference and of a claim (0: none), and how that does."""

    published: int = 0
    known: int = 0
    claim: int = 0
    beat: int = 0
    gone: bool = False
    ended: str = ""
    """How its holder said that it ended: `built`, `left`, or `failed`."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """The image of this number will do."""

    number: int


@dataclass(frozen=True, slots=True)
class Claim:
    """Try to win this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The holder of this number is at work."""

    number: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The holder of this number failed while we waited: so would we."""

    number: int


Move = Reuse | Claim | Wait | GiveUp


class Contest:
    """One caller's part in it. `outdated`: images up to this number will not do for it."""

    def __init__(self, *, outdated: int = 0, grace_s: float = GRACE_S) -> None:
        self._outdated = outdated
        self._judge = DeathJudge(grace_s)
        self._waited_for = 0

    def step(self, seen: Seen, now: float) -> Move:
        """What to do after a look; the caller has just written to the same filesystem."""
        self._judge.own_write(now)
        if seen.published > self._outdated:
            return Reuse(seen.published)
        if seen.claim and not self._over(seen, now):
            self._waited_for = seen.claim
            return Wait(seen.claim)
        if seen.ended == "failed" and seen.claim == self._waited_for:
            return GiveUp(seen.claim)
        return Claim(max(seen.claim, seen.known, seen.published) + 1)

    def _over(self, seen: Seen, now: float) -> bool:
        if seen.ended or seen.gone:
            return True
        name = str(seen.claim)
        if seen.claim != self._waited_for:
            self._judge.forget(str(self._waited_for))
        self._judge.observe(name, seen.beat, now)
        return name in self._judge.dead(now)
