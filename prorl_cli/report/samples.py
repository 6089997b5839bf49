"""Transcripts of a run: which ones, and how one reads. The text comes from the run's own tokenizer."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool.steps import read_step
from prorl_cli.spool.trajectories import Entry, TrajectoryFollower, read_trajectory
from prorl_cli.trajectory import Purpose, Sequence, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which transcripts to show."""

    order: str = "newest"
    """`newest`, `worst`, `best` or `failed`."""
    step: int | None = None
    """Only records of this training step."""
    count: int = 5


def pick_samples(run: RunDir, wanted: Wanted) -> list[Trajectory]:
    """The wanted trajectories that can be read: of training, or of an evaluation where there was no training."""
    found = []
    for entry in _choose(_candidates(run, wanted.step), wanted):
        try:
            found.append(read_trajectory(run, entry))
        except CorruptRecord:
            continue
    return found


def _candidates(run: RunDir, step: int | None) -> Iterable[Entry]:
    entries = TrajectoryFollower(run).poll()
    if step is None:
        return [entry for entry in entries if entry.purpose is Purpose.TRAIN] or entries
    manifest = read_step(run, step)
    members = {(ref.writer, ref.seq) for ref in manifest.records} if manifest else set()
    return [entry for entry in entries if (entry.writer, entry.seq) in members]


def _choose(entries: Iterable[Entry], wanted: Wanted) -> list[Entry]:
    failed = wanted.order == "failed"
    chosen = [entry for entry in entries if (entry.error_class is not None) == failed]
    if wanted.order == "worst":
        return heapq.nsmallest(wanted.count, chosen, key=lambda entry: entry.reward)
    if wanted.order == "best":
        return heapq.nlargest(wanted.count, chosen, key=lambda entry: entry.reward)
    return list(reversed(chosen))[: wanted.count]


def transcript(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> list[tuple[str, str]]:
    """(`policy` | `context`, text) pieces of every sequence, in order."""
    return [piece for sequence in trajectory.sequences for piece in _pieces(sequence, decode)]


def _pieces(sequence: Sequence, decode: Callable[[list[int]], str]) -> list[tuple[str, str]]:
    pieces: list[tuple[str, str]] = []
    ids, mask = sequence.ids, sequence.mask
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or mask[end] != mask[start]:
            pieces.append(("policy" if mask[start] else "context", decode(ids[start:end])))
            start = end
    return pieces
