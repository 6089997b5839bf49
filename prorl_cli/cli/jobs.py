"""Commands about a run's Slurm jobs: `explain`, `attach`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prorl_cli.cli import registry
from prorl_cli.errors import UserError
from prorl_cli.report import shown
from prorl_cli.report.jobs import main_job, read_jobs
from prorl_cli.report.screen import span
from prorl_cli.report.status import read_brief, read_recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attach import attach_command, attach_satellite
from prorl_cli.slurm.child import tail
from prorl_cli.slurm.environment import scrubbed
from prorl_cli.slurm.plan import plan_processes
from prorl_cli.slurm.queued import submitted
from prorl_cli.slurm.reasons import explain as in_words
from prorl_cli.slurm.records import recorded
from prorl_cli.slurm.state import JobState, job_state, with_estimate
from prorl_cli.slurm.submit import Job
from prorl_cli.slurm.topology import read_topology
from prorl_cli.spool.members import current_attempt, read_endpoints, read_obituaries

WORDS = 8
"""Lines of a log that are usually enough to see why it ended."""


def explain(target: Path | None) -> None:
    """Why a run, or any job, waits or died."""
    job_id = int(str(target).partition("+")[0]) if target is not None and _is_job(target) else None
    try:
        root: Path | None = registry.find(target)
    except UserError:
        if job_id is None:
            raise
        root = None
    if root is None:
        print("\n".join(_about_job(with_estimate(job_state(job_id or 0)))))
        return
    run = RunDir.open(root)
    jobs = read_jobs([run])[0]
    chosen = main_job(jobs)
    wanted = next((job for job in submitted(run) if job.job_id == (job_id or (chosen.id if chosen else None))), None)
    brief = read_brief(run, jobs)
    why = f": {brief.reason}" if brief.state in ("failed", "starved", "stopped") else ""
    print(f"run {shown(root)} is {brief.state}, step {brief.step} of {brief.steps}{why}")
    print("\n".join(_about_run(run, wanted, brief.reason)))


def _is_job(target: Path) -> bool:
    return not target.exists() and str(target).partition("+")[0].isdigit()


def _about_run(run: RunDir, job: Job | None, reason: str) -> list[str]:
    if job is None:
        return [*([reason] if reason else ["it runs on this machine"]), *_last_words(run, None)]
    state = with_estimate(job_state(job.job_id, recorded(run, job)))
    lines = _about_job(state)
    return [*lines, *_last_words(run, job)] if state.over or not state.known else lines


def _about_job(state: JobState) -> list[str]:
    said = in_words(state)
    head = f"job {state.job_id} is {state.state}" + (f" ({state.reason})" if state.reason and not state.over else "")
    lines = [head, f"  why   {said.what}", f"  do    {said.do}"]
    if state.state == "PENDING":
        lines.append(f"  start {_estimate(state)}")
    if state.time_left_s is not None and state.state == "RUNNING":
        lines.append(f"  left  {span(state.time_left_s)} of its time limit, on {state.nodes}")
    if len(state.components) > 1:
        lines += [
            f"  part  {row.offset} (job {row.job_id}, {row.partition or 'partition unknown'}): {row.state}"
            + (f" {row.reason}" if row.reason else "") + (f" on {row.nodes}" if row.nodes else "")
            for row in state.components
        ]  # fmt: skip
    age = "nothing was ever heard of it" if state.age_s is None else f"the news is {span(state.age_s)} old"
    return [*lines, *([f"  from  {state.source}, {age}"] if state.source in ("record", "nobody") else [])]


def _estimate(state: JobState) -> str:
    if state.start_estimate is None:
        return "Slurm gives no estimate yet"
    return f"about {time.strftime('%a %d %b %H:%M', time.localtime(state.start_estimate))}, as Slurm plans now"


def _last_words(run: RunDir, job: Job | None) -> list[str]:
    """The ends of the logs of those who died with an error, and of the job itself."""
    attempt = current_attempt(run)
    died = {name for name, obituary in read_obituaries(run).items() if obituary.code}
    slots = sorted({peer.slot for peer in read_endpoints(run, attempt) if peer.incarnation in died and peer.slot})
    logs = [run.log(attempt, slot) for slot in slots]
    if job is not None:
        logs.append(run.job_log(job.token, job.job_id))
    return [line for log in logs if (words := tail(log, WORDS)) for line in (f"last words of {log.name}:", words)]


def attach(root: Path, role: str) -> None:
    """Become a shell on the node where `role` runs."""
    run = RunDir.open(root)
    attempt = current_attempt(run)
    topology = read_topology(run, attempt)
    if topology is None:
        print(f"{shown(root)} runs its roles on this machine: you are already there")
        return
    command = _satellite(run, role)
    if command is None:
        plan = plan_processes(read_recipe(run, attempt), has_weights=True).roles
        process = next((one for one in plan if role in (one.name, one.room)), None)
        if process is None:
            raise UserError(f"no role {role!r} in this run: there is {', '.join(one.name for one in plan)}")
        command = attach_command(topology, process)
    os.execvpe(command[0], command, scrubbed())


def _satellite(run: RunDir, role: str) -> list[str] | None:
    """Of the rollout worker's own job, where it is one."""
    jobs = {f"rollout-{job.satellite}": job.job_id for job in submitted(run) if job.satellite is not None}
    name = min(jobs, default="") if role == "rollout" else role
    return attach_satellite(jobs[name]) if name in jobs else None
