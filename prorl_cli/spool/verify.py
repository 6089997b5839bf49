"""Everything that is wrong in a run's spool and weights, with file and offset; reads every byte, repairs nothing.

Called by `prorl spool verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool import members, requests, sealed, trajectories, weights
from prorl_cli.spool.log import Finding, scan

__all__ = ["Finding", "verify_run"]


def verify_run(run: RunDir) -> Iterator[Finding]:
    """Findings of the request logs, the trajectory logs, the step log, the evaluations and the weights."""
    alive = _alive(run)
    for worker in fsio.names(run.requests):
        for writer in fsio.names(run.requests / worker):
            yield from scan(run.request_log(worker, writer), requests.FACTS_SIZE, writer not in alive)
    for writer in fsio.names(run.trajectories):
        yield from scan(run.trajectory_log(writer), trajectories.FACTS_SIZE, writer not in alive)
    for folder in (run.steps, run.evals):
        yield from _sealed_files(folder)
    for version, lineage in run.weight_folders().items():
        yield from weights.scan_weights(run.weight(version, lineage))


def _alive(run: RunDir) -> set[str]:
    """Incarnations that may still be writing, as far as their files say."""
    attempt = members.current_attempt(run)
    try:
        ended = members.read_outcome(run, attempt) is not None
    except CorruptRecord:
        ended = True
    found = members.read_endpoints(run, attempt)
    return set() if ended else {e.incarnation for e in members.live(found, members.read_obituaries(run), attempt)}


def _sealed_files(folder: Path) -> Iterator[Finding]:
    for name in fsio.names(folder):
        data = None if name.startswith(".") else fsio.read(folder / name)
        problem = None if data is None else sealed.damage(data)
        if problem is not None:
            yield Finding(folder / name, *problem)
