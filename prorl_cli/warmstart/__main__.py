"""`python -m prorl_cli.warmstart RUN_DIR`: publishes weights 000000 of a run and ends; nothing to do if they are there.

Its lines go to stdout; the live view shows the last one. Exit codes are those of `prorl`. Started by `launch` and
`resume` before any role.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import ProrlError, RunDirError, UserError
from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import TINY
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import current_attempt, ensure_current
from prorl_cli.spool.weights import latest_weights, publish_weights
from prorl_cli.warmstart.checks import check_model

WRITER = "warmstart"


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def start(root: Path) -> None:
    """Publish weights 000000 of the run in `root`, unless it has weights already."""
    run = RunDir.open(root)
    attempt = current_attempt(run)
    if latest_weights(run) >= 0:
        say("warm start: the run has its weights")
        return
    resolved = fsio.read(run.resolved(attempt))
    if resolved is None:
        raise RunDirError(f"{root} has no {run.resolved(attempt).name}: start it with `prorl launch`")
    recipe = Recipe.model_validate_json(resolved)
    if recipe.model == TINY:
        _publish_tiny(run, attempt, recipe)
    else:
        _publish_copy(run, attempt, Path(recipe.model).expanduser())
    say("warm start: weights 000000 are published")


def _publish_tiny(run: RunDir, attempt: int, recipe: Recipe) -> None:
    from prorl_cli.warmstart.obtain import obtain_tiny

    folder = obtain_tiny(recipe, say)
    ensure_current(run, attempt)
    publish_weights(run, 0, folder.write, written_by=WRITER)


def _publish_copy(run: RunDir, attempt: int, model: Path) -> None:
    if problems := check_model(str(model)):
        raise UserError("; ".join(problems))
    from prorl_cli.warmstart.copying import copy_model

    say(f"warm start: copying {model}")
    ensure_current(run, attempt)
    publish_weights(run, 0, lambda folder: copy_model(model, folder), written_by=WRITER)


def main() -> None:
    """Exits the process."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m prorl_cli.warmstart RUN_DIR")
    # Read by torch when it loads: threads that spin while they wait make a busy machine many times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        start(Path(sys.argv[1]))
    except ProrlError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
