"""Which rollout workers may be given work, and which are gone with what they had.

An obituary, an announced end or an older attempt settles it at once; for mere silence `fsio.DeathJudge` decides, which
refuses a verdict while the filesystem stands still. A verdict of silence is taken back when the beat moves again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from prorl_cli.fsio import DeathJudge
from prorl_cli.spool.members import Endpoint, attempt_of

GRACE_S = 30.0
"""Silence after which a worker is taken for dead: fifteen heartbeats."""

OVER = frozenset({"drained", "ended"})
"""States in which a worker holds nothing any more."""

NOT_TAKING = OVER | {"draining"}
"""States in which a worker starts nothing new."""


class Watchdog:
    """Judges the peers of coordinator `name` in its `attempt`."""

    def __init__(self, name: str, attempt: int, grace_s: float = GRACE_S) -> None:
        self._name = name
        self._attempt = attempt
        self._judge = DeathJudge(grace_s)
        self._beat = -1
        self._workers: dict[str, Endpoint] = {}
        self._silent: set[str] = set()
        self._ended: set[str] = set()

    def observe(
        self, now: float, endpoints: Iterable[Endpoint], obituaries: Collection[str], asked: Iterable[str]
    ) -> None:
        """What the endpoint files say at monotonic `now`; `asked` are the workers that hold work."""
        peers = {e.incarnation: e for e in endpoints if e.attempt == self._attempt}
        self._ended = {*obituaries, *(name for name, peer in peers.items() if peer.state in OVER)}
        if (own := peers.pop(self._name, None)) and own.beat != self._beat:
            self._beat = own.beat
            self._judge.own_write(now)
        for name in {*peers, *asked}:
            if name in self._ended or self._is_older(name):
                self._judge.forget(name)
            else:
                self._judge.observe(name, peers[name].beat if name in peers else -1, now)
        self._silent = self._judge.dead(now)
        self._workers = {name: peer for name, peer in peers.items() if peer.role == "rollout"}

    @property
    def alive(self) -> frozenset[str]:
        """Workers that may be given work."""
        return frozenset(
            name for name, peer in self._workers.items() if peer.state not in NOT_TAKING and not self._is_gone(name)
        )

    def gone(self, asked: Iterable[str]) -> frozenset[str]:
        """Those of `asked` that will not finish what they have."""
        return frozenset(name for name in asked if self._is_gone(name))

    def _is_gone(self, name: str) -> bool:
        return name in self._ended or name in self._silent or self._is_older(name)

    def _is_older(self, name: str) -> bool:
        attempt = attempt_of(name)
        return attempt is not None and attempt < self._attempt
