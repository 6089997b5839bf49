"""What each evaluation found, one file a weight version. Called by the coordinator (publishes) and the status."""

from __future__ import annotations

from prorl_cli import fsio
from prorl_cli.rundir import RunDir
from prorl_cli.spool import sealed
from prorl_cli.trajectory import Record


class Evaluation(Record):
    """Weight `version` on `n` held-out items, one sample each at T = 1.

    `passed` counts rewards ≥ 0.99; `by_domain` is pass@1 of each domain; `failed` items ended in an error and are not
    among the `n`.
    """

    version: int
    n: int
    passed: float
    pass_at_1: float
    stderr: float
    by_domain: dict[str, float]
    failed: int


def publish_evaluation(run: RunDir, evaluation: Evaluation) -> Evaluation:
    """Publish the evaluation of a version; the first one stands and is returned."""
    return sealed.publish_first(run.evaluation(evaluation.version), evaluation)


def read_evaluation(run: RunDir, version: int) -> Evaluation | None:
    """The evaluation of `version`, None before it is published."""
    return sealed.load(run.evaluation(version), Evaluation)


def evaluations(run: RunDir) -> dict[int, Evaluation]:
    """All evaluations by version, ascending."""
    versions = sorted(
        int(name[:-5]) for name in fsio.names(run.evals) if name[:-5].isdigit() and name.endswith(".json")
    )
    found = {version: read_evaluation(run, version) for version in versions}
    return {version: evaluation for version, evaluation in found.items() if evaluation is not None}
