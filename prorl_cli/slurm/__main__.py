"""`python -m prorl_cli.slurm RUN_DIR TOKEN`: what a batch script runs, for a job of the run or for one satellite."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import ProrlError, RunDirError, Unfinished
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.job import run_job
from prorl_cli.slurm.satellite import run_satellite
from prorl_cli.slurm.submit import read_request, record_job
from prorl_cli.slurm.told import Told


def main() -> None:
    """From two arguments and Slurm's environment to an exit code."""
    told = Told()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    if len(sys.argv) != 3 or "SLURM_JOB_ID" not in os.environ:
        raise SystemExit("usage, in the batch step of a Slurm job: python -m prorl_cli.slurm RUN_DIR TOKEN")
    try:
        code = _run(Path(sys.argv[1]), sys.argv[2], told)
    except ProrlError as error:
        logging.getLogger("job").error("%s", error)
        code = error.exit_code
    raise SystemExit(code)


def _run(root: Path, token: str, told: Told) -> int:
    run = RunDir.open(root)
    request, resolved = read_request(run, token), fsio.read(run.submitted_recipe(token))
    if request is None or resolved is None:
        raise RunDirError(f"{run.submission(token)} is not whole: `prorl resume {root}` submits a new job")
    own = int(os.environ["SLURM_JOB_ID"])
    if (known := record_job(run, token, own)) != own:
        raise Unfinished(f"job {known} was submitted for the same: this one is its double and ends")
    recipe = Recipe.model_validate_json(resolved)
    return (run_job if request.satellite is None else run_satellite)(run, recipe, request, told)


if __name__ == "__main__":
    main()
