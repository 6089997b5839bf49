"""From the trajectories of a manifest to rows with advantages, shares per optimizer update, and micro-batches.

Pure, without torch. Says in words why a step's data may not be trained on. Called by the walk.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import fmean

from prorl_cli.algorithm import correction_refusal, group_advantages, permuted_rewards
from prorl_cli.trajectory import Purpose, RecordRef, Sequence, StepManifest, Trajectory, check_trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence to train on; all sequences of a trajectory share its advantage. `temperature` is the sampler's."""

    sequence: Sequence
    advantage: float
    temperature: float

    def __len__(self) -> int:
        return len(self.sequence)

    @property
    def trained(self) -> int:
        """Authored tokens that something predicts: the first token of a sequence is nobody's."""
        return self.sequence.loss_mask[1:].count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one step: `shares[u]` belong to optimizer update `u`, and every row is trained on once."""

    shares: tuple[tuple[Row, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One optimizer update as one rank does it: its micro-batches in order, and the authored tokens of all ranks.

    Every rank has as many micro-batches as the others; where it runs out of rows they are empty.
    """

    parts: tuple[tuple[Row, ...], ...]
    total: int


Groups = Seq[Seq[Trajectory]]


def build_batch(groups: Groups, *, updates: int, temperature: float, shuffle: str | None = None) -> Batch:
    """Advantages within each group (failed members left out first), groups dealt round-robin to `updates` shares.

    `temperature` is for records that do not say theirs. `shuffle` seeds the control experiment.
    """
    members = finished(groups)
    rewards = [[t.reward for t in group] for group in members]
    if shuffle is not None:
        rewards = permuted_rewards(rewards, shuffle)
    scored = [(group, group_advantages(given)) for group, given in zip(members, rewards, strict=True)]
    return _deal(scored, updates, temperature)


def _deal(scored: list[tuple[list[Trajectory], list[float]]], updates: int, temperature: float) -> Batch:
    rows = [
        tuple(row for t, value in zip(group, values, strict=True) for row in _rows(t, value, temperature))
        for group, values in scored
    ]
    shares = (tuple(row for group in rows[u::updates] for row in group) for u in range(updates))
    return Batch(shares=tuple(share for share in shares if share))


def _rows(trajectory: Trajectory, advantage: float, temperature: float) -> list[Row]:
    used = trajectory.sampling.get("temperature", temperature)
    return [Row(sequence=s, advantage=advantage, temperature=used) for s in trajectory.sequences if s.authored]


def finished(groups: Groups) -> list[list[Trajectory]]:
    """Groups without their failed members."""
    return [[t for t in group if t.error_class is None] for group in groups]


def micro_batches(rows: Seq[Row], budget: int) -> list[list[Row]]:
    """Rows by length (ties in their given order), cut so that rows × longest ≤ `budget` tokens where one row allows."""
    found: list[list[Row]] = []
    for row in sorted(rows, key=len):
        if not found or (len(found[-1]) + 1) * len(row) > budget:
            found.append([])
        found[-1].append(row)
    return found


def schedule(batch: Batch, *, ranks: int, budget: int) -> list[tuple[Share, ...]]:
    """What each rank does in a step, update by update: a function of the rows and the number of ranks alone."""
    updates = [_shares(rows, ranks, budget) for rows in batch.shares]
    return [tuple(update[rank] for update in updates) for rank in range(ranks)]


def _shares(rows: Seq[Row], ranks: int, budget: int) -> list[Share]:
    cut = [[tuple(part) for part in micro_batches(own, budget)] for own in deal(rows, ranks)]
    rounds = max(map(len, cut))
    total = sum(row.trained for row in rows)
    return [Share(parts=(*parts, *[()] * (rounds - len(parts))), total=total) for parts in cut]


def deal(rows: Seq[Row], ranks: int) -> list[list[Row]]:
    """Longest rows first, each to the rank with the fewest tokens so far; a rank's rows stay in their given order."""
    load = [0] * ranks
    owner = [0] * len(rows)
    for number in sorted(range(len(rows)), key=lambda number: -len(rows[number])):
        owner[number] = min(range(ranks), key=load.__getitem__)
        load[owner[number]] += len(rows[number])
    return [[row for row, own in zip(rows, owner, strict=True) if own == rank] for rank in range(ranks)]


def record_trouble(ref: RecordRef, trajectory: Trajectory, vocab_size: int) -> str:
    """Why this record is not what its manifest names or may not be trained on; empty when it may."""
    if (trajectory.group, trajectory.member, trajectory.purpose) != (ref.group, ref.member, Purpose.TRAIN):
        return f"it is {trajectory.id}"
    return "; ".join(check_trajectory(trajectory, vocab_size))


def step_trouble(manifest: StepManifest, groups: Groups) -> str:
    """Why a step's data as a whole may not be trained on; empty when it may."""
    sequences = [s for group in finished(groups) for t in group for s in t.sequences if s.authored]
    if not sequences:
        return "no record holds a token that the policy authored"
    if not any(value for s in sequences for value in s.logprob_values):
        return "its records hold no engine logprobs (all are zero), so nothing says which policy wrote them"
    return correction_refusal(is_cap=manifest.is_cap, staleness=staleness(manifest, groups))


def staleness(manifest: StepManifest, groups: Groups) -> int:
    """(N − 1) − the oldest weight version among the step's trained tokens."""
    oldest = [t.versions[0] for group in finished(groups) for t in group if t.authored]
    return manifest.position - 1 - min(oldest, default=manifest.position - 1)


def facts(manifest: StepManifest, groups: Groups) -> dict[str, object]:
    """What the metrics row says of a step's data: rewards by domain, tokens, records, groups, staleness."""
    members = [t for group in finished(groups) for t in group]
    domains = sorted({t.task.domain for t in members})
    return {
        "reward": fmean(t.reward for t in members) if members else 0.0,
        "reward_by_domain": {d: fmean(t.reward for t in members if t.task.domain == d) for d in domains},
        "tokens": sum(t.tokens for t in members),
        "records": len(members),
        "groups": len(groups),
        "staleness": staleness(manifest, groups),
    }
