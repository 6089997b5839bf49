"""`status`: one frozen picture of a run, the same for the live view, the summary and `--json`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from prorl_cli.errors import RunDirError
from prorl_cli.metrics import newest_rows, read_rows
from prorl_cli.recipe import Recipe
from prorl_cli.report import flow
from prorl_cli.report.advice import Load, advise
from prorl_cli.report.jobs import JobStatus, main_job
from prorl_cli.report.tally import Tally
from prorl_cli.rundir import RunDir
from prorl_cli.spool.evals import Evaluation, evaluations
from prorl_cli.spool.members import (
    Endpoint,
    current_attempt,
    live,
    read_endpoints,
    read_obituaries,
    read_outcome,
    read_stop,
)

SILENT_S = 15.0
"""A heartbeat older than this, by the reader's clock on the endpoint file, is shown as silent."""


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process, alive or dead."""

    name: str
    role: str
    state: str
    waiting: str
    waiting_s: float
    version: int
    step: int
    idle: float | None
    facts: dict[str, float | int | str]


class EvalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Pass@1 of one weight version on held-out tasks."""

    version: int
    pass_at_1: float
    stderr: float
    n: int
    by_domain: dict[str, float]
    failed: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything `prorl status` says. Times in seconds."""

    run: str
    name: str
    state: str
    reason: str
    attempt: int
    step: int
    steps: int
    eval: dict[str, EvalStatus]
    trajectories: dict[str, Any]
    errors: dict[str, str]
    throughput: dict[str, float]
    learner: dict[str, float]
    bottleneck: str
    waits: list[str]
    roles: list[RoleStatus]
    reward_curve: list[float]
    elapsed_s: float
    throughput_curve: list[float] = msgspec.field(default_factory=list)
    domains: dict[str, flow.DomainStatus] = msgspec.field(default_factory=dict)
    stages: dict[str, flow.StageStatus] = msgspec.field(default_factory=dict)
    advice: str = ""
    job: JobStatus | None = None
    jobs: list[JobStatus] = msgspec.field(default_factory=list)


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What `ls` says of a run, at the price of some small files."""

    state: str
    reason: str
    step: int
    steps: int
    job: JobStatus | None


def read_status(run: RunDir, tally: Tally | None = None, jobs: Sequence[JobStatus] = ()) -> Status:
    """The picture of `run` now; `tally` is what was counted before, `jobs` what its Slurm jobs were last seen to do."""
    counts = tally or Tally(run)
    counts.update()
    attempt = current_attempt(run)
    recipe = read_recipe(run, attempt)
    endpoints = read_endpoints(run)
    roles = _read_roles(run, attempt)
    job = main_job(jobs)
    state, reason = _with_job(*_state(run, attempt, roles), job)
    published = _last_of_each_step(read_rows(run, "step_published"))
    steps = _with_reward_of_all(_last_of_each_step(read_rows(run, "step")), published)
    workers = [role.facts for role in roles if role.role == "rollout" and role.state != "dead"]
    workers_rows = newest_rows(run, "rollout") if state in ("running", "stopping") else []
    return Status(
        run=str(run.root), name=recipe.name, state=state, reason=reason, attempt=attempt,
        step=max(run.weight_folders(), default=0), steps=recipe.learner.steps,
        eval=_evals(evaluations(run), recipe.learner.steps),
        trajectories={
            "finished": counts.finished, "failed": dict(counts.failed), "dropped": _dropped(published),
            "replayed": counts.replayed, "diverged": counts.diverged,
        },
        errors=counts.errors(),
        throughput=flow.throughput(counts, endpoints) | flow.throughput_now(workers_rows),
        throughput_curve=flow.throughput_curve(published, recipe.rollout.group_size),
        domains=flow.domains(recipe, counts, steps), stages=flow.stages(workers),
        learner=flow.learner(steps), bottleneck=_bottleneck(roles) if counts.finished else "",
        waits=_waits(roles), roles=roles,
        reward_curve=[float(row["reward"]) for row in steps], elapsed_s=_elapsed(run),
        advice=advise(_loads(roles), recipe.rollout.max_staleness), job=job, jobs=list(jobs),
    )  # fmt: skip


def read_brief(run: RunDir, jobs: Sequence[JobStatus] = ()) -> Brief:
    """State and step alone: no trajectory, no metric is read."""
    attempt = current_attempt(run)
    job = main_job(jobs)
    state, reason = _with_job(*_state(run, attempt, _read_roles(run, attempt)), job)
    step, steps = max(run.weight_folders(), default=0), read_recipe(run, attempt).learner.steps
    return Brief(state=state, reason=reason, step=step, steps=steps, job=job)


def _read_roles(run: RunDir, attempt: int) -> list[RoleStatus]:
    endpoints = read_endpoints(run, attempt)
    alive = {peer.incarnation for peer in live(endpoints, read_obituaries(run), attempt)}
    return [_role(peer, peer.incarnation in alive) for peer in endpoints if peer.attempt == attempt]


def read_recipe(run: RunDir, attempt: int) -> Recipe:
    """The resolved recipe of the newest attempt up to `attempt` that wrote one; before the first, the submitted one."""
    attempts = [run.resolved(number) for number in range(max(1, attempt), 0, -1)]
    for path in [*attempts, *_submitted_recipes(run)]:
        if path.exists():
            return Recipe.model_validate_json(path.read_text())
    raise RunDirError(f"{run.root} holds no resolved recipe: its launch did not get far: remove it and start again")


def _submitted_recipes(run: RunDir) -> list[Path]:
    """Newest first."""
    found = [path for token in run.tokens() if (path := run.submitted_recipe(token)).exists()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _role(peer: Endpoint, alive: bool) -> RoleStatus:
    up = float(peer.facts.get("up_s", 0))
    # What a role does in threads of its own it counts as busy; a role that only answers is as busy as its CPU.
    busy = max(float(peer.facts.get("busy_s", 0)), float(peer.facts.get("cpu_s", 0)))
    idle = round(max(0.0, 1 - busy / up), 3) if up > 1 else None
    state = peer.state if alive or peer.state == "ended" else "dead"
    return RoleStatus(
        name=peer.incarnation, role=peer.role, state=state,
        waiting=peer.waiting if alive else "", waiting_s=peer.waiting_s, version=peer.version, step=peer.step,
        idle=idle, facts=peer.facts,
    )  # fmt: skip


def _state(run: RunDir, attempt: int, roles: list[RoleStatus]) -> tuple[str, str]:
    if outcome := read_outcome(run, attempt):
        return outcome.state, outcome.reason
    if read_stop(run, attempt):
        return "stopping", "a stop was ordered"
    newest = max((run.endpoint(role.name).stat().st_mtime for role in roles), default=None)
    if newest is None:
        return "starting", ""
    if time.time() - newest > SILENT_S:
        return "dead", f"no process was heard for {time.time() - newest:.0f} s: `prorl resume {run.root}` goes on"
    return "running", ""


def _with_job(state: str, reason: str, job: JobStatus | None) -> tuple[str, str]:
    """A run whose processes do not speak is what its job is."""
    if job is None or state in ("running", "stopping", "done"):
        return state, reason
    if job.waits:
        return "queued", f"job {job.id}: {job.words}"
    if state not in ("starting", "dead") or job.state in ("RUNNING", "CONFIGURING", "COMPLETING"):
        return state, reason
    return "dead", f"job {job.id} is {job.state}: {job.words}; `prorl explain {job.id}` says more"


def _loads(roles: list[RoleStatus]) -> dict[str, Load]:
    """What each role's living processes did with their time."""
    found: dict[str, Load] = {}
    for role in roles:
        if role.idle is None or role.state == "dead":
            continue
        up = float(role.facts.get("up_s", 0))
        before = found.get(role.role, Load(0, 0.0, 0.0))
        found[role.role] = Load(before.count + 1, before.busy_s + (1 - role.idle) * up, before.up_s + up)
    return found


def _dropped(published: list[dict[str, Any]]) -> dict[str, int]:
    total = Counter[str]()
    for row in published:
        total.update(row.get("dropped", {}))
    return dict(total)


def _elapsed(run: RunDir) -> float:
    times = [path.stat().st_mtime for path in run.metrics.glob("*.jsonl")] + [run.recipe.stat().st_mtime]
    return round(max(times) - run.recipe.stat().st_mtime, 1)


def _last_of_each_step(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A replay writes its rows again."""
    return sorted({row["step"]: row for row in rows}.values(), key=lambda row: int(row["step"]))


def _with_reward_of_all(steps: list[dict[str, Any]], published: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean reward of every episode of a step: the learner knows only those with a signal."""
    rewards = {row["step"]: row["reward"] for row in published if "reward" in row}
    return [{**row, "reward": rewards.get(row["step"], row["reward"])} for row in steps]


def _evals(found: dict[int, Evaluation], steps: int) -> dict[str, EvalStatus]:
    named = {}
    for version, evaluation in sorted(found.items()):
        name = "before" if version == 0 else "after" if version == steps else str(version)
        named[name] = EvalStatus(
            version=version, pass_at_1=evaluation.pass_at_1, stderr=evaluation.stderr, n=evaluation.n,
            by_domain=evaluation.by_domain, failed=evaluation.failed,
        )  # fmt: skip
    return named


def _waits(roles: list[RoleStatus]) -> list[str]:
    return [f"{role.role} waits for {role.waiting} ({role.waiting_s:.0f} s)" for role in roles if role.waiting]


def _bottleneck(roles: list[RoleStatus]) -> str:
    """The role that idles least: everybody else waits for it."""
    known = [(role.idle, role.role) for role in roles if role.idle is not None and role.state != "dead"]
    if not known:
        return ""
    idle, name = min(known)
    return f"{name} (busy {100 * (1 - idle):.0f} % of the time)"
