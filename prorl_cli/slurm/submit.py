"""One submission: its folder, one `sbatch`, the job that it became, found again when the controller's answer was lost.

Refuses to claim an attempt: a job that waits in the queue must not fence the one that runs. Called by `launch`,
`resume` and a running job that queues its successor.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable

import msgspec

from prorl_cli import fsio
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm import script
from prorl_cli.slurm.commands import ControllerDown, SlurmError, slurm
from prorl_cli.trajectory import Record

BACK_OFF_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Before each further try: an overloaded controller needs minutes, and every try is more load."""


class Request(Record):
    """What one submission is for, written before sbatch is called.

    `after` is the job whose end it waits for (a satellite: whose start), `satellite` the number of the rollout worker
    that is all it runs, `restore` the checkpoint that its attempt goes back to.
    """

    token: str
    after: int | None = None
    satellite: int | None = None
    restore: int | None = None


class Job(Record):
    """The job that a submission became; `submitted_at` in unix seconds."""

    token: str
    job_id: int
    submitted_at: float
    cluster: str = ""
    satellite: int | None = None


def new_token() -> str:
    """Names one submission for ever."""
    return secrets.token_hex(6)


def submit(
    run: RunDir, recipe: Recipe, token: str, *, after: int | None = None, satellite: int | None = None,
    restore: int | None = None, sleep: Callable[[float], None] = time.sleep,
) -> int:  # fmt: skip
    """Submit once, whatever the controller forgets to answer; returns the job's id. A refusal leaves nothing."""
    if (known := read_job(run, token)) is not None:
        return known.job_id
    unsure = read_request(run, token) is not None
    write_folder(run, recipe, Request(token=token, after=after, satellite=satellite, restore=restore))
    try:
        answer = _sbatch(run, token, unsure, sleep)
    except ControllerDown:
        raise
    except SlurmError:
        fsio.remove_folder(run.submission(token))
        raise
    job_id, _, cluster = answer.strip().partition(";")
    return record_job(run, token, int(job_id), cluster)


def record_job(run: RunDir, token: str, job_id: int, cluster: str = "") -> int:
    """Say which job the submission became: whoever submitted it, or the job itself at its start. The first one stays
    and is returned: a job that finds another one there is the double of a submission that was thought lost."""
    request = read_request(run, token)
    job = Job(
        token=token, job_id=job_id, submitted_at=time.time(), cluster=cluster,
        satellite=None if request is None else request.satellite,
    )  # fmt: skip
    if fsio.publish_exclusive(run.job_record(token), msgspec.json.encode(job)):
        return job_id
    first = read_job(run, token)
    return job_id if first is None else first.job_id


def write_folder(run: RunDir, recipe: Recipe, request: Request) -> None:
    """Everything that the job will read."""
    token = request.token
    text = script.render(recipe, run.root, token, after=request.after, satellite=request.satellite)
    fsio.make_folder(run.submission(token))
    for component, step in script.render_steps(recipe, run.root).items():
        fsio.publish(run.step_script(token, component), step.encode())
    fsio.publish(run.submitted_recipe(token), recipe.model_dump_json(indent=2).encode())
    fsio.publish(run.request(token), msgspec.json.encode(request))
    fsio.publish(run.sbatch_line(token), sbatch_line(run, token).encode() + b"\n")
    fsio.publish(run.script(token), text.encode())


def sbatch_line(run: RunDir, token: str) -> str:
    """What is run, as one would type it."""
    return f"cd {shlex.quote(str(run.submission(token)))} && {shlex.join(script.SBATCH)}"


def read_request(run: RunDir, token: str) -> Request | None:
    """What the submission was for; None when there is no such submission."""
    data = fsio.read(run.request(token))
    return None if data is None else msgspec.json.decode(data, type=Request)


def read_job(run: RunDir, token: str) -> Job | None:
    """The job that the submission became; None as long as nobody knows."""
    data = fsio.read(run.job_record(token))
    return None if data is None else msgspec.json.decode(data, type=Job)


def find_job(token: str) -> int | None:
    """The job that carries this token, if the controller has it."""
    for line in slurm(["squeue", "--me", "-h", "--states=all", "-o", "%A|%i|%k"]).splitlines():
        own, shown, said = (*line.split("|", 2), "", "")[:3]
        if said.strip() == script.comment(token):
            return int(shown.partition("+")[0]) if re.fullmatch(r"\d+\+\d+", shown) else int(own)
    return None


def _sbatch(run: RunDir, token: str, unsure: bool, sleep: Callable[[float], None]) -> str:
    """`unsure`: an earlier call may have arrived."""
    for wait_s in (0.0, *BACK_OFF_S):
        sleep(wait_s)
        try:
            if (wait_s or unsure) and (found := find_job(token)) is not None:
                return str(found)
            return slurm(script.SBATCH, folder=run.submission(token))
        except ControllerDown as error:
            down = error
    raise down
