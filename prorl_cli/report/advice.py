"""What to have more of, and what less: from the shares of time that each role idles. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEASURED_S = 120.0
"""Before a role has been up for this long its shares are those of its start."""

BUSY, IDLE = 0.85, 0.5
"""A role that works more than this has nothing to spare; one that works less waits for others half of its time."""

ROLES = ("rollout", "engine", "learner")


@dataclass(frozen=True, slots=True)
class Load:
    """All processes of one role together: how many there are, and the seconds they worked and were up."""

    count: int
    busy_s: float
    up_s: float

    @property
    def share(self) -> float:
        """Of its time that the role works."""
        return min(1.0, self.busy_s / self.up_s) if self.up_s else 0.0


def advise(loads: Mapping[str, Load], max_staleness: int) -> str:
    """One sentence on the ratio rollout : engine : learner; empty while nothing is known or nothing is to be won."""
    known = {role: loads[role] for role in ROLES if role in loads}
    if len(known) < len(ROLES) or any(load.up_s < MEASURED_S * load.count for load in known.values()):
        return ""
    ratio = " : ".join(str(known[role].count) for role in ROLES)
    shares = ", ".join(f"{role} {100 * known[role].share:.0f} %" for role in ROLES)
    busiest = max(known, key=lambda role: known[role].share)
    idle = [role for role in ROLES if known[role].share < IDLE]
    told = f"rollout : engine : learner is {ratio}, busy {shares}"
    if known[busiest].share >= BUSY and idle:
        return f"{told}: {_more(busiest, known[busiest], idle)}"
    if len(idle) == len(ROLES):
        return f"{told}: all wait for each other; {_loosen(max_staleness)}"
    return ""


def _more(role: str, load: Load, idle: list[str]) -> str:
    """Half as many again: enough to see whether it helps."""
    spare = " and ".join(idle)
    if role == "learner":
        return f"the learner is what {spare} wait for: give it more GPUs, or take nodes from {spare}"
    more = load.count + max(1, load.count // 2)
    return f"{spare} wait for {role}: raise cluster.{role}.nodes from {load.count} to {more}"


def _loosen(max_staleness: int) -> str:
    if max_staleness == 0:
        return "rollout.max_staleness 1 lets training and rollout overlap"
    return "larger rollout.groups_per_step, or more rollout.run.slots, fill the gaps"
