"""Which engine serves the next turn: a pure state machine fed with `now`, gate facts and lease events.

It does no I/O and knows no HTTP; the `service` around it does. Load is counted per engine *incarnation*, so that
one that leaves and comes back cannot inherit or underflow a counter. Rules:

- An engine is a candidate when it holds weights (`ready`, or `paused` for a swap), answers its gate, and its version
  fits. One that swaps (holds a permit or is paused) or has just missed a beat is taken only when no calm one fits:
  its requests wait inside it, and a single engine must still serve. A lease for an *exact* version is never
  granted on an engine that swaps, and an engine with such leases open gets no permit.
- Among candidates the least (in-flight tokens / measured speed) wins, near-ties at random. A session stays on its
  engine until that costs clearly more, and avoids the engine that has just failed it.
- Leases and permits expire. After a restart the gates' own in-flight tokens stand in for leases not known here.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from statistics import median
from typing import Any

LEASE_TTL_S = 30.0
"""A leaked lease weighs this long; clients renew at a third of it."""
PERMIT_TTL_S = 60.0
"""A holder renews by asking again; a dead one is noticed by its gate long before."""
MISSES_OUT = 2
"""Unanswered gate polls or failed leases in a row until an engine is out."""
STICKY_FACTOR = 1.25
"""A session moves when its engine costs a quarter more than the best one, and the prefix that it would recompute
there (at most this turn's tokens) on top."""
NEAR = 1.1
"""Costs within 10 % are a tie: measured speeds are never equal, and the first in a dict would win each time."""
SESSIONS = 16384
"""Sessions remembered; the least recently used is forgotten."""
SPEED_HALF_LIFE_S, SPEED_PRIOR_S = 30.0, 5.0
"""Speeds fade towards the fleet's median, so that an engine once measured slow is tried again."""
FORGOTTEN_S = 1e-3
"""A measurement faded below this says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What an engine's gate says of itself."""

    state: str
    version: int
    in_flight_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One turn that wants an engine: `tokens` is its expected size; `version` (exact) overrides `min_version`."""

    session: str
    tokens: int
    min_version: int = 0
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lease, and the engine it is good for."""

    lease: str
    engine: str
    engine_url: str
    version: int
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The end of a lease: tokens generated in so many seconds; `ok` is False when the engine failed it."""

    lease: str
    tokens: int = 0
    seconds: float = 0.0
    ok: bool = True


@dataclass(slots=True, kw_only=True)
class _Lease:
    engine: str
    session: str
    tokens: int
    exact: bool
    expires: float


@dataclass(slots=True, kw_only=True)
class _Engine:
    name: str
    url: str
    state: str
    version: int
    misses: int = 0
    leased: int = 0
    """Tokens of leases granted here and still open."""
    exact: int = 0
    """Open leases that name this version exactly."""
    foreign: int = 0
    """Tokens its gate counts beyond them (leases of an earlier router)."""
    measured_tokens: float = 0.0
    measured_s: float = 0.0
    measured_at: float = 0.0
    speed: float = 1.0
    """Tokens per second of one request, faded towards the median."""

    @property
    def load(self) -> int:
        return self.leased + self.foreign

    @property
    def up(self) -> bool:
        return self.state in ("ready", "paused") and self.misses < MISSES_OUT

    def holds(self, ask: Ask) -> bool:
        return self.version == ask.version if ask.version is not None else self.version >= ask.min_version

    def cost(self, tokens: int) -> float:
        return (self.load + tokens) / self.speed


@dataclass(slots=True, kw_only=True)
class _Session:
    engine: str
    avoid: str = ""


@dataclass(slots=True, kw_only=True)
class _Permit:
    version: int
    expires: float


@dataclass(slots=True)
class Router:
    """The state. `rng` breaks ties; `nonce` makes lease ids of this process unlike any other's."""

    rng: random.Random
    nonce: str
    changes: int = 0
    """Grows whenever an ask refused before might be granted now."""
    _engines: dict[str, _Engine] = field(default_factory=dict)
    _leases: OrderedDict[str, _Lease] = field(default_factory=OrderedDict)
    _sessions: OrderedDict[str, _Session] = field(default_factory=OrderedDict)
    _permits: dict[str, _Permit] = field(default_factory=dict)
    _granted: int = 0

    # engines

    def engine_seen(self, now: float, name: str, url: str, gate: Gate) -> None:
        """An engine's gate answered: it joins, or its facts are brought up to date."""
        engine = self._engines.get(name)
        if engine is None:
            engine = self._engines[name] = _Engine(name=name, url=url, state="", version=-1)
        before = (engine.url, engine.state, engine.version, engine.misses)
        engine.url, engine.state, engine.version, engine.misses = url, gate.state, gate.version, 0
        engine.foreign = max(0, gate.in_flight_tokens - engine.leased)
        permit = self._permits.get(name)
        if permit and gate.state == "ready" and gate.version >= permit.version:
            self.release_permit(now, name)
        self._refresh_speeds(now)
        if before != (url, gate.state, gate.version, 0):
            self.changes += 1

    def engine_missed(self, name: str) -> None:
        """Its gate did not answer, or it failed a lease."""
        if engine := self._engines.get(name):
            engine.misses += 1

    def engine_gone(self, name: str) -> None:
        """It ended: its leases and its permit end with it."""
        if self._engines.pop(name, None) is None:
            return
        self._permits.pop(name, None)
        for lease in [key for key, lease in self._leases.items() if lease.engine == name]:
            del self._leases[lease]
        self.changes += 1

    @property
    def engines(self) -> set[str]:
        """Names of the engines that have joined and not gone."""
        return set(self._engines)

    # leases

    def lease(self, now: float, ask: Ask) -> Grant | str:
        """A grant, or in words why there is none now."""
        self.expire(now)
        session = self._sessions.get(ask.session)
        candidates = self._candidates(ask, session.avoid if session else "")
        if not candidates:
            return self._reason(ask)
        engine = self._choose(ask, candidates, session.engine if session else "")
        return self._grant(now, ask, engine)

    def release(self, now: float, release: Release) -> None:
        """The lease is over. One that is not known (expired, or another router's) changes nothing."""
        lease = self._leases.pop(release.lease, None)
        if lease is None:
            return
        engine = self._forget(lease)
        if not release.ok:
            engine.misses += 1
            self._remember(lease.session, _Session(engine="", avoid=engine.name))
        elif release.tokens > 0 and release.seconds > 0:
            self._fade(engine, now)
            engine.measured_tokens += release.tokens
            engine.measured_s += release.seconds

    def renew(self, now: float, lease: str) -> bool:
        """Another ttl for a turn that takes long; False when the lease is not known."""
        self.expire(now)
        found = self._leases.get(lease)
        if found is None:
            return False
        found.expires = now + LEASE_TTL_S
        self._leases.move_to_end(lease)
        return True

    def expire(self, now: float) -> None:
        """End leases and permits whose time is over. Leases lie in order of expiry: one ttl for all."""
        while self._leases:
            name, lease = next(iter(self._leases.items()))
            if lease.expires > now:
                break
            del self._leases[name]
            self._forget(lease)
        for name in [name for name, permit in self._permits.items() if permit.expires <= now]:
            self.release_permit(now, name)

    # swap permits

    def permit(self, now: float, engine: str, version: int) -> bool:
        """May `engine` swap to `version` now? At most half of the engines, and at least one, swap at a time."""
        self.expire(now)
        known = self._engines.get(engine)
        if engine not in self._permits:
            others = {name for name in self._swapping() if name != engine}
            if len(others) >= max(1, len(self._engines) // 2) or (known and known.exact):
                return False
        self._permits[engine] = _Permit(version=version, expires=now + PERMIT_TTL_S)
        return True

    def release_permit(self, now: float, engine: str) -> None:
        """The swap is over, one way or the other."""
        if self._permits.pop(engine, None):
            self.changes += 1

    # what people see

    def status(self, now: float) -> dict[str, Any]:
        """Plain facts, for `GET /status`."""
        self.expire(now)
        count = Counter(lease.engine for lease in self._leases.values())
        engines = {
            e.name: {
                "url": e.url, "state": e.state if e.misses < MISSES_OUT else "out", "version": e.version,
                "leases": count[e.name], "leased_tokens": e.leased, "foreign_tokens": e.foreign,
                "speed": round(e.speed, 3), "permit": e.name in self._permits,
            }
            for e in self._engines.values()
        }  # fmt: skip
        return {
            "engines": engines,
            "leases": len(self._leases),
            "sessions": len(self._sessions),
            "granted": self._granted,
        }

    # choosing

    def _candidates(self, ask: Ask, avoid: str) -> list[_Engine]:
        able = [engine for engine in self._engines.values() if engine.up and engine.holds(ask)]
        swapping = self._swapping()
        still = [engine for engine in able if engine.name not in swapping]
        if ask.version is not None:
            able = still
        calm = [engine for engine in still if engine.misses == 0]
        return [e for e in calm if e.name != avoid] or [e for e in able if e.name != avoid] or able

    def _choose(self, ask: Ask, candidates: list[_Engine], bound: str) -> _Engine:
        costs = [(engine.cost(ask.tokens), engine) for engine in candidates]
        best, fastest = min(costs, key=lambda pair: pair[0])
        for cost, engine in costs:
            if engine.name == bound and cost <= STICKY_FACTOR * best + ask.tokens / fastest.speed:
                return engine
        return self.rng.choice([engine for cost, engine in costs if cost <= NEAR * best])

    def _grant(self, now: float, ask: Ask, engine: _Engine) -> Grant:
        self._granted += 1
        name = f"{self.nonce}-{self._granted}"
        exact = ask.version is not None
        self._leases[name] = _Lease(
            engine=engine.name, session=ask.session, tokens=ask.tokens, exact=exact, expires=now + LEASE_TTL_S
        )
        engine.leased += ask.tokens
        engine.exact += exact
        self._remember(ask.session, _Session(engine=engine.name))
        return Grant(lease=name, engine=engine.name, engine_url=engine.url, version=engine.version, ttl_s=LEASE_TTL_S)

    def _reason(self, ask: Ask) -> str:
        if not self._engines:
            return "no engine has joined yet"
        up = [engine for engine in self._engines.values() if engine.up]
        if not up:
            states = Counter("not answering" if e.misses >= MISSES_OUT else e.state for e in self._engines.values())
            return "no engine serves: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        if any(engine.holds(ask) for engine in up):
            return f"the engines that hold version {ask.version} are swapping away from it"
        held = ", ".join(str(version) for version in sorted({engine.version for engine in up}))
        wanted = f"exactly version {ask.version}" if ask.version is not None else f"version {ask.min_version} or newer"
        return f"no engine holds {wanted} (they hold {held})"

    # bookkeeping

    def _swapping(self) -> set[str]:
        """Permit holders, and paused engines whose permit an earlier router gave."""
        return set(self._permits) | {engine.name for engine in self._engines.values() if engine.state == "paused"}

    def _forget(self, lease: _Lease) -> _Engine:
        engine = self._engines[lease.engine]
        engine.leased -= lease.tokens
        engine.exact -= lease.exact
        return engine

    def _remember(self, session: str, binding: _Session) -> None:
        self._sessions[session] = binding
        self._sessions.move_to_end(session)
        if len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)

    def _fade(self, engine: _Engine, now: float) -> None:
        factor = 0.5 ** ((now - engine.measured_at) / SPEED_HALF_LIFE_S)
        engine.measured_tokens *= factor
        engine.measured_s *= factor
        engine.measured_at = now

    def _refresh_speeds(self, now: float) -> None:
        measured = [e.measured_tokens / e.measured_s for e in self._engines.values() if e.measured_s > FORGOTTEN_S]
        prior = median(measured) if measured else 1.0
        for engine in self._engines.values():
            self._fade(engine, now)
            total = engine.measured_tokens + SPEED_PRIOR_S * prior
            engine.speed = total / (engine.measured_s + SPEED_PRIOR_S)
