"""The step log: position N is published once, by whoever is first, and never rewritten.

The verdict that a position changes nothing is a second file beside it. Refuses gaps to nobody: the coordinator decides
what comes next. Called by the coordinator (publishes), the learner (reads, voids) and the status.
"""

from __future__ import annotations

from collections.abc import Iterator

from prorl_cli.rundir import RunDir
from prorl_cli.spool import sealed
from prorl_cli.trajectory import StepManifest, Void


def publish_step(run: RunDir, manifest: StepManifest) -> StepManifest:
    """Publish a position; returns what now stands there, which may be another's."""
    return sealed.publish_first(run.step(manifest.position), manifest)


def read_step(run: RunDir, position: int) -> StepManifest | None:
    """The manifest at `position`, None before it is published; `CorruptRecord` when its bytes are damaged."""
    return sealed.load(run.step(position), StepManifest)


def steps(run: RunDir) -> Iterator[StepManifest]:
    """All manifests in order of position; `CorruptRecord` at a damaged one."""
    for position in run.positions():
        manifest = read_step(run, position)
        if manifest is not None:
            yield manifest


def last_position(run: RunDir) -> int:
    """The highest published position; 0 before the first."""
    return max(run.positions(), default=0)


def publish_void(run: RunDir, void: Void) -> Void:
    """Say that a position changes nothing; returns the verdict that stands."""
    return sealed.publish_first(run.void(void.position), void)


def read_void(run: RunDir, position: int) -> Void | None:
    """The verdict on `position`, None when there is none."""
    return sealed.load(run.void(position), Void)
