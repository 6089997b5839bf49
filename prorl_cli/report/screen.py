"""The live view and the closing summary of a run, as rich renderables. Pure: from a `Status` to text."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from prorl_cli.report.chart import draw, sparkline
from prorl_cli.report.jobs import JobStatus
from prorl_cli.report.status import EvalStatus, RoleStatus, Status

STATE_STYLE = {
    "done": "bold green",
    "running": "green",
    "failed": "bold red",
    "dead": "bold red",
    "starved": "bold red",
}


def render_live(status: Status) -> RenderableType:
    """What `launch` and `status` redraw while a run goes on."""
    parts: list[RenderableType] = [_headline(status), *_jobs(status), _progress(status)]
    if status.reward_curve:
        reward = status.learner.get("reward", 0.0)
        parts.append(Text(f"reward  {sparkline(status.reward_curve)}  {reward:.3f} (mean of the last 10 steps)"))
    parts += [Text(line) for line in _evaluations(status)]
    parts += [_rates(status), *_stages(status), *_domains(status), _roles(status.roles)]
    parts += [*_errors(status), *(Text(f"  {wait}", style="dim") for wait in status.waits)]
    if status.advice:
        parts.append(Text(f"advice        {status.advice}", style="cyan"))
    return Group(*parts)


def render_summary(status: Status) -> RenderableType:
    """What `launch` ends with."""
    parts: list[RenderableType] = [_headline(status), *_jobs(status)]
    parts += [Text(line, style="bold") for line in _evaluations(status)]
    if status.reward_curve:
        parts.append(Text(f"\ntraining reward, step 1 to {len(status.reward_curve)}"))
        parts += [Text(line, style="cyan") for line in draw(status.reward_curve)]
    parts += [Text(""), _rates(status), *_domains(status), Text(_drops(status))]
    parts += _errors(status)
    if status.bottleneck:
        parts.append(Text(f"bottleneck    {status.bottleneck}"))
    if status.advice:
        parts.append(Text(f"advice        {status.advice}"))
    parts += [Text(""), *(Text(f"  {command}", style="dim") for command in _further(status))]
    return Group(*parts)


def _headline(status: Status) -> Text:
    text = Text(f"{status.name}  ", style="bold")
    text.append(status.state, style=STATE_STYLE.get(status.state, "yellow"))
    text.append(
        f"  step {status.step}/{status.steps}  {status.elapsed_s / 60:.1f} min  {shown(Path(status.run))}",
        style="default",
    )
    if status.reason and status.state != "done":
        text.append(f"\n  {status.reason}", style="yellow")
    return text


def _jobs(status: Status) -> list[RenderableType]:
    """The job that the picture is about, then how many others there are."""
    if status.job is None:
        return []
    others = Counter(job.state.lower() for job in status.jobs if job.id != status.job.id and job.source != "record")
    more = ", ".join(f"{count} more {state}" for state, count in sorted(others.items()) if state != "unknown")
    return [Text(f"job {job_line(status.job)}" + (f"; {more}" if more else ""))]


def job_line(job: JobStatus) -> str:
    """One job in one line."""
    said = [f"{job.id} {job.state}"]
    if job.state not in ("RUNNING", "COMPLETED"):
        said.append(job.words)
    if job.time_left_s is not None and job.state == "RUNNING":
        said.append(f"{span(job.time_left_s)} left")
    if job.waits and job.start_estimate is not None:
        said.append(f"starts about {time.strftime('%a %H:%M', time.localtime(job.start_estimate))}")
    if job.nodes and job.state == "RUNNING":
        said.append(f"on {job.nodes}")
    if job.age_s is not None and job.age_s >= 60:
        said.append(f"last heard {span(job.age_s)} ago")
    return ", ".join(said)


def span(seconds: float) -> str:
    """A length of time as a person says it."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes < 2880 else f"{minutes // 1440} days"


def _progress(status: Status) -> RenderableType:
    # Padding: a bare bar does not end its line.
    return Padding(ProgressBar(total=max(1, status.steps), completed=status.step, width=60))


def _evaluations(status: Status) -> list[str]:
    lines = [f"pass@1 {_spell(name):<16}{_score(found)}" for name, found in status.eval.items()]
    if "before" in status.eval and "after" in status.eval:
        gain = status.eval["after"].pass_at_1 - status.eval["before"].pass_at_1
        lines.append(f"pass@1 gain           {gain:+.3f}")
    return lines


def _spell(name: str) -> str:
    return f"at step {name}" if name.isdigit() else f"{name} training"


def _score(found: EvalStatus) -> str:
    domains = ", ".join(f"{domain} {value:.3f}" for domain, value in found.by_domain.items())
    failed = f", {found.failed} more failed" if found.failed else ""
    return f"{found.pass_at_1:.3f} ± {found.stderr:.3f}  (n = {found.n}{failed}, T = 1; {domains})"


def _rates(status: Status) -> Text:
    learner = status.learner
    step = f"{learner['step_s']:.2f} s per step, " if learner else ""
    rate = status.throughput
    now = f" ({rate['trajectories_per_min_now']:.0f} now)" if rate.get("trajectories_per_min_now") else ""
    over_time = f"  {sparkline(status.throughput_curve)}" if len(status.throughput_curve) > 1 else ""
    parts = ", ".join(f"{name} {learner.get(f'{name}_s', 0):.2f} s" for name in ("read", "train", "publish", "waited"))
    return Text(
        f"throughput    {rate['trajectories_per_min']:.0f} trajectories/min{now}, "
        f"{step}{rate['tokens_per_s']:.0f} tokens/s{over_time}"
        + (f"\nlearner       entropy {learner['entropy']:.3f}, KL {learner['kl']:.4f}; {parts}" if learner else "")
    )


def _stages(status: Status) -> list[RenderableType]:
    told = (
        f"{name} {stage.running} running, {stage.queued} queued, {stage.seconds:.2f} s each"
        for name, stage in status.stages.items()
    )
    return [Text(f"stages        {'; '.join(told)}")] if status.stages else []


def _domains(status: Status) -> list[RenderableType]:
    return [
        Text(
            f"{'domains' if first else '':<14}{name} reward {domain.reward:.3f}"
            + ("" if domain.recent is None else f" (lately {domain.recent:.3f})")
            + f", {domain.finished} episodes; failed: {_classes(domain.failed)}"
        )
        for first, (name, domain) in zip((True, *[False] * len(status.domains)), status.domains.items(), strict=False)
    ]


def _drops(status: Status) -> str:
    counts = status.trajectories
    failed, dropped = _classes(counts["failed"]), _classes(counts["dropped"])
    replayed = f"; went on in a fresh box: {counts['replayed']} ({counts['diverged']} diverged)"
    line = f"trajectories  {counts['finished']} finished; failed: {failed}; dropped: {dropped}"
    return line + replayed if counts["replayed"] else line


def _errors(status: Status) -> list[RenderableType]:
    return [
        Text(f"first error   {name}: {text.splitlines()[0][:200]}", style="red") for name, text in status.errors.items()
    ]


def _classes(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _roles(roles: list[RoleStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("role", "state", "weights", "step", "idle", ""):
        table.add_column(column)
    for role in (role for role in roles if role.state != "dead"):
        table.add_row(
            role.name, role.state, _number(role.version), _number(role.step),
            "" if role.idle is None else f"{100 * role.idle:.0f} %", _facts(role.facts),
        )  # fmt: skip
    return table


def _facts(facts: dict[str, float | int | str]) -> str:
    """Without what the lines above sum up."""
    summed = ("_s", "_queued", "_running")
    shown = [f"{key} {value}" for key, value in facts.items() if not key.endswith(summed) or key == "tokens_per_s"]
    return ", ".join(shown[:6])


def _number(value: int) -> str:
    return "" if value < 0 else str(value)


def _further(status: Status) -> list[str]:
    run = shown(Path(status.run))
    return [
        f"prorl samples {run} --worst   transcripts (also --best, --failed, --step N)",
        f"prorl status {run} --json     all of this for machines",
        f"prorl logs {run} learner      a role's log",
        f"prorl export {run} OUT        the model as a Hugging Face folder",
    ]


def shown(path: Path) -> str:
    """A path as a person would type it into a shell here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) and path != here else path))
