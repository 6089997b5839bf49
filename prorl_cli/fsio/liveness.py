"""The verdict that a peer is dead, from heartbeat counters and the observer's own clock alone.

Pure: no mtime, no other machine's clock, no I/O. Refuses a verdict in a window in which the observer's own writes
stalled, or all peers stalled together: then it is the filesystem that stands still. Called by the coordinator with the
beats that it reads from endpoint files.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Peer:
    beat: int
    changed: float
    seen: float
    condemned: bool = False


class DeathJudge:
    """Judges peers whose beat has not changed for `grace_s` seconds.

    Any `now` is the observer's monotonic clock, in seconds. A silence of `grace_s / 2` counts as a stall, so heartbeats
    and observations must be several times as frequent.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace = grace_s
        self._stall = grace_s / 2
        self._peers: dict[str, _Peer] = {}
        self._written: float | None = None

    def observe(self, name: str, beat: int, now: float) -> None:
        """`name`'s counter was read as `beat`. A counter that moves after everybody's stood still restarts everybody's
        clock."""
        peer = self._peers.get(name)
        if peer is None:
            self._peers[name] = _Peer(beat=beat, changed=now, seen=now)
            return
        if beat != peer.beat:
            if self._all_stalled(now):
                self._pardon(now)
            peer.beat, peer.changed, peer.condemned = beat, now, False
        peer.seen = now

    def forget(self, name: str) -> None:
        """`name` has ended in another way, or its death has been dealt with."""
        self._peers.pop(name, None)

    def own_write(self, now: float) -> None:
        """The observer has just written to the same filesystem. After a stall everybody's clock restarts."""
        if self._written is None or now - self._written > self._stall:
            self._pardon(now)
        self._written = now

    def dead(self, now: float) -> set[str]:
        """Peers judged dead, until their beat moves or they are forgotten."""
        stalled = self._written is None or now - self._written > self._stall or self._all_stalled(now)
        if not stalled:
            for peer in self._watched(now):
                peer.condemned = now - peer.changed >= self._grace
        return {name for name, peer in self._peers.items() if peer.condemned}

    def _watched(self, now: float) -> list[_Peer]:
        """Peers with no verdict that somebody still looks at."""
        return [peer for peer in self._peers.values() if not peer.condemned and now - peer.seen < self._grace]

    def _all_stalled(self, now: float) -> bool:
        watched = self._watched(now)
        return len(watched) >= 2 and all(now - peer.changed > self._stall for peer in watched)

    def _pardon(self, now: float) -> None:
        for peer in self._peers.values():
            if not peer.condemned:
                peer.changed = now
