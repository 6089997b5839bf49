"""What the trajectory logs of a run hold, counted as they grow: in constant memory, from the index entries alone."""

from __future__ import annotations

from collections import Counter

from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool.trajectories import Entry, TrajectoryFollower, read_trajectory
from prorl_cli.trajectory import Purpose


class Tally:
    """Keep one for a view that is drawn again and again. Tasks are numbers, as in the recipe."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._follower = TrajectoryFollower(run)
        self.finished = 0
        self.tokens = 0
        self.replayed = self.diverged = 0
        """Episodes that went on in a fresh box after theirs had died; and those that then saw another output."""
        self.failed = Counter[str]()
        self.finished_of = Counter[int]()
        self.reward_of = Counter[int]()
        """Sums, of training alone."""
        self.failed_of = Counter[tuple[int, str]]()
        self._examples: dict[str, Entry] = {}

    def update(self) -> None:
        """Count what was appended since."""
        for entries in self._follower.chunks():
            for entry in entries:
                self.replayed += entry.replays > 0
                self.diverged += entry.diverged
                if entry.error_class is None:
                    self.finished += 1
                    self.tokens += entry.authored
                    if entry.purpose is Purpose.TRAIN:
                        self.finished_of[entry.task] += 1
                        self.reward_of[entry.task] += entry.reward  # type: ignore[assignment]
                else:
                    self._count_failure(entry)

    def _count_failure(self, entry: Entry) -> None:
        kind = str(entry.error_class)
        self.failed[kind] += 1
        self.failed_of[entry.task, kind] += 1
        self._examples.setdefault(kind, entry)

    def errors(self) -> dict[str, str]:
        """The first error of each class, in its own words."""
        found = {name: self._error(entry) for name, entry in self._examples.items()}
        return {name: text for name, text in found.items() if text}

    def _error(self, entry: Entry) -> str:
        try:
            return read_trajectory(self._run, entry).error
        except CorruptRecord:
            return ""
