"""An attempt belongs to one `launch` or `resume`: exclusive, and refused while another is at work."""

from __future__ import annotations

import socket
import time

from prorl_cli.errors import UserError
from prorl_cli.fsio.identity import still_runs
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attempt import begin
from prorl_cli.slurm.commands import SlurmError
from prorl_cli.slurm.queued import held
from prorl_cli.spool.members import BEAT_S, current_attempt, read_claim, read_endpoints, read_outcome


def claim(run: RunDir, recipe: Recipe, restore: int | None) -> int:
    """Begin the next attempt; `UserError` when another process of this run is at work, `Fenced` when it was quicker."""
    previous = current_attempt(run)
    refuse_if_at_work(run, previous)
    return begin(run, recipe, after=previous, restore=restore)


def refuse_if_at_work(run: RunDir, attempt: int) -> None:
    """`UserError` that says who is."""
    if who := at_work(run, attempt):
        raise UserError(f"{run.root} is already running ({who}): stop it first with `prorl stop {run.root}`")


def at_work(run: RunDir, attempt: int) -> str:
    """Who goes on with the run now or later, in words: a job that runs or waits in the queue, the launch of `attempt`
    on this machine, or heartbeats from another. Empty when nobody does."""
    try:
        jobs = [found for found in held(run) if found.job.satellite is None and found.state != "COMPLETING"]
        asked = True
    except SlurmError:
        jobs, asked = [], False
    if jobs:
        return f"job {jobs[-1].job.job_id} is {jobs[-1].state}"
    owner = read_claim(run, attempt)
    if owner is None or ("job_id" in owner and asked):
        return ""
    if owner["host"] == socket.gethostname() and "job_id" not in owner:
        here = still_runs(owner["pid"], owner["pid_started"])
    else:
        here = read_outcome(run, attempt) is None and _hearts_beat(run, attempt)
    return f"process {owner['pid']} on {owner['host']}, attempt {attempt}" if here else ""


def _hearts_beat(run: RunDir, attempt: int) -> bool:
    """Whether any process of the attempt still writes heartbeats: two looks, three beats apart."""
    first = {peer.incarnation: peer.beat for peer in read_endpoints(run) if peer.attempt == attempt}
    time.sleep(3 * BEAT_S)
    return any(first.get(peer.incarnation, peer.beat) != peer.beat for peer in read_endpoints(run))
