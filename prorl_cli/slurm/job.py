"""The supervisor in a job's batch step: an attempt from its claim to its outcome, on the nodes that Slurm gave.

A job that Slurm runs again is a new attempt, so whatever is left of the one before is fenced. An attempt without an
outcome (a node died, somebody killed this process) is one that can be resumed. Called by `python -m prorl_cli.slurm`.
"""

from __future__ import annotations

import logging
import os

from prorl_cli.errors import RunDirError, Unfinished
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm import chain
from prorl_cli.slurm.attempt import begin
from prorl_cli.slurm.commands import SlurmError
from prorl_cli.slurm.plan import Plan, plan_processes
from prorl_cli.slurm.shape import groups
from prorl_cli.slurm.step import Steps
from prorl_cli.slurm.submit import Request, submit
from prorl_cli.slurm.supervisor import supervise
from prorl_cli.slurm.told import Told
from prorl_cli.slurm.topology import topology, write_topology
from prorl_cli.slurm.watch import JobWatch, ToldToEnd
from prorl_cli.spool.members import Outcome, publish_outcome, read_claim, read_outcome

EXIT = {"done": 0, "failed": 1, "starved": 1, "stopped": Unfinished.exit_code}
"""Exit codes of a job, and of `launch`, by outcome."""

log = logging.getLogger("job")


def run_job(run: RunDir, recipe: Recipe, request: Request, told: Told) -> int:
    """Run one attempt; returns the exit code of the job."""
    restart = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    goes_on = restart > 0 or chain.split(request.token)[1] > 0
    if (ended := chain.over(run, recipe)) is not None and (goes_on or ended.state == "done"):
        log.info("nothing to go on with, the run is %s: %s", ended.state, ended.reason)
        return EXIT[ended.state]
    looping = goes_on and chain.crash_loop(chain.past_attempts(run), _step(run))
    nodes = topology(groups(recipe), os.environ)
    attempt = begin(
        run, recipe, restore=_restore(run, request), job_id=nodes.job_id, restart_count=restart,
        token=request.token, step=_step(run),
    )  # fmt: skip
    write_topology(run, attempt, nodes)
    log.info("attempt %d of %s in job %d", attempt, run.root, nodes.job_id)
    if looping:
        return _give_up(run, attempt)
    _queue_next(run, recipe, request.token, nodes.job_id)
    plan = plan_processes(recipe, has_weights=bool(run.weight_folders()))
    watch = JobWatch(run, attempt, recipe, told)
    outcome = _supervised(run, attempt, plan, watch, Steps(run, attempt, nodes, request.token))
    log.info("attempt %d is %s at step %d: %s", attempt, outcome.state, outcome.step, outcome.reason)
    watch.close(outcome)
    return EXIT[outcome.state]


def _supervised(run: RunDir, attempt: int, plan: Plan, watch: JobWatch, steps: Steps) -> Outcome:
    try:
        return supervise(run, attempt, plan, watch.recipe.cluster.restarts, watch, steps)
    except ToldToEnd as error:
        return read_outcome(run, attempt) or Outcome(state="stopped", reason=str(error), step=_step(run))
    except RunDirError as error:
        raise Unfinished(f"the run stopped: {error}") from error


def _restore(run: RunDir, request: Request) -> int | None:
    """The checkpoint to go back to, once: not again when Slurm runs the job again."""
    claims = (read_claim(run, number) or {} for number in run.attempts())
    return None if any(claim.get("token") == request.token for claim in claims) else request.restore


def _queue_next(run: RunDir, recipe: Recipe, token: str, job_id: int) -> None:
    if (following := chain.successor(token, recipe.cluster.chain)) is None:
        return
    try:
        log.info("job %d waits to go on where this one ends", submit(run, recipe, following, after=job_id))
    except SlurmError as error:
        log.warning("the next job could not be queued; `prorl resume %s` goes on: %s", run.root, error)


def _give_up(run: RunDir, attempt: int) -> int:
    step = _step(run)
    reason = (
        f"the last two attempts ended without a training step behind step {step}, so no further job is started: "
        f"see the logs of attempts {attempt - 2} and {attempt - 1} in {run.logs}, then `prorl resume {run.root}`"
    )
    log.error("%s", reason)
    return EXIT[publish_outcome(run, attempt, Outcome(state="failed", reason=reason, step=step)).state]


def _step(run: RunDir) -> int:
    return max(run.weight_folders(), default=0)
