"""What the coordinator says in words: what it waits for, and why a run has starved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prorl_cli.coordinator.batcher import Batcher
from prorl_cli.coordinator.evaluation import Evaluator
from prorl_cli.coordinator.groups import ZERO_VARIANCE, Group, Verdict


def waiting_for(batcher: Batcher, evaluator: Evaluator | None, weights: int, alive: frozenset[str]) -> str:
    """The one thing without which nothing goes on."""
    if not alive:
        return "a rollout worker"
    if weights < 0 or (weights < batcher.position and (batcher.full or not batcher.steps_left)):
        return f"weights {batcher.position}"
    if evaluator is not None and weights >= evaluator.version:
        return f"evaluation of weights {evaluator.version}: {evaluator.finished}/{len(evaluator.groups)}"
    open_groups = (group for group in batcher.groups.values() if not group.resolved)
    if group := next(open_groups, None):
        return _group(group)
    return "a free slot" if batcher.admissible(weights) else f"weights {batcher.position}"


def _group(group: Group) -> str:
    number, member = next((n, m) for n, m in enumerate(group.members) if not m.over)
    return f"group {group.number} (member {number} {f'on {member.worker}' if member.worker else 'without a worker'})"


def starved(position: int, settled: Sequence[Verdict]) -> str:
    """Why no group of those settled for `position` can be trained on, by domain, and what to do."""
    found: dict[str, Counter[str]] = {}
    for verdict in settled:
        found.setdefault(verdict.domain, Counter())[_kind(verdict)] += 1
    domains = [
        f"{domain}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        for domain, kinds in sorted(found.items())
    ]
    return (
        f"{len(settled)} groups were settled for step {position} and none of them has rewards that differ "
        f"({'; '.join(domains)}): choose tasks that the model solves sometimes, a larger rollout.group_size, "
        "or look at `prorl samples --failed`"
    )


def _kind(verdict: Verdict) -> str:
    if verdict.reason != ZERO_VARIANCE:
        return verdict.reason
    reward = verdict.rewards[0]
    return "all 0" if reward == 0 else "all 1" if reward == 1 else f"all {reward:g}"
