"""What flows through a run: throughput, stages, domains, the learner's numbers. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from prorl_cli.recipe import Recipe
from prorl_cli.report.tally import Tally
from prorl_cli.spool.members import Endpoint

RECENT_S = 60.0
"""Rows of workers that are older than the newest one by this much say nothing of now."""


class DomainStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Training episodes of one domain: `reward` over all of them, `recent` over the last steps."""

    finished: int
    reward: float
    recent: float | None
    failed: dict[str, int]


class StageStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One stage over all rollout workers; `seconds` is what an episode spent there on average."""

    queued: int
    running: int
    seconds: float


def throughput(counts: Tally, endpoints: list[Endpoint]) -> dict[str, float]:
    rolling = max(1.0, sum(_rolling_seconds(endpoints, attempt) for attempt in {peer.attempt for peer in endpoints}))
    return {
        "trajectories_per_min": round(60 * counts.finished / rolling, 1),
        "tokens_per_s": round(counts.tokens / rolling, 1),
    }


def throughput_now(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of the last seconds, from each worker's newest row; nothing for a run that stands."""
    newest = max((row["t"] for row in rows), default=0.0)
    recent = [row for row in rows if newest - row["t"] < RECENT_S and row.get("seconds")]
    return {
        "trajectories_per_min_now": round(sum(60 * row.get("finished", 0) / row["seconds"] for row in recent), 1),
        "tokens_per_s_now": round(sum(row.get("authored", 0) / row["seconds"] for row in recent), 1),
    }


def throughput_curve(published: list[dict[str, Any]], group_size: int) -> list[float]:
    """Settled trajectories a minute, a step each."""
    pairs = itertools.pairwise(published)
    return [
        round(60 * after.get("settled", 0) * group_size / max(1e-3, after["t"] - before["t"]), 1)
        for before, after in pairs
        if "settled" in after
    ]


def domains(recipe: Recipe, counts: Tally, steps: list[dict[str, Any]]) -> dict[str, DomainStatus]:
    found: dict[str, DomainStatus] = {}
    for domain in dict.fromkeys(spec.domain for spec in recipe.tasks):
        tasks = [number for number, spec in enumerate(recipe.tasks) if spec.domain == domain]
        finished = sum(counts.finished_of[task] for task in tasks)
        rewards = [row["reward_by_domain"][domain] for row in steps[-10:] if domain in row.get("reward_by_domain", {})]
        failed = Counter[str]()
        for (task, kind), count in counts.failed_of.items():
            failed[kind] += count if task in tasks else 0
        found[domain] = DomainStatus(
            finished=finished, reward=round(sum(counts.reward_of[task] for task in tasks) / max(1, finished), 4),
            recent=round(sum(rewards) / len(rewards), 4) if rewards else None, failed=dict(+failed),
        )  # fmt: skip
    return found


def stages(workers: Sequence[dict[str, float | int | str]]) -> dict[str, StageStatus]:
    """From the facts of the living rollout workers."""

    def total(name: str) -> float:
        return sum(float(one.get(name, 0)) for one in workers)

    finished = max(1.0, total("finished"))
    return {
        stage: StageStatus(
            queued=int(total(f"{stage}_queued")), running=int(total(f"{stage}_running")),
            seconds=round(total(f"{stage}_s") / finished, 3),
        )
        for stage in ("init", "run", "eval") if workers
    }  # fmt: skip


def _rolling_seconds(endpoints: list[Endpoint], attempt: int) -> float:
    """From the first rollout worker's start to the last one's newest word."""
    spans = [
        (peer.pid_started, peer.pid_started + float(peer.facts.get("up_s", 0)))
        for peer in endpoints
        if peer.role == "rollout" and peer.attempt == attempt
    ]
    return max((end for _, end in spans), default=0.0) - min((start for start, _ in spans), default=0.0)


def learner(steps: list[dict[str, Any]]) -> dict[str, float]:
    last = steps[-10:]
    if not last:
        return {}
    keys = (
        "step_s",
        "read_s",
        "train_s",
        "publish_s",
        "reward",
        "entropy",
        "kl",
        "loss",
        "grad_norm",
        "clip_fraction",
        "staleness",
        "waited_s",
    )
    return {key: round(sum(float(row.get(key, 0)) for row in last) / len(last), 5) for key in keys}
