"""Commands that only read a run: `status`, `samples`, `logs`, `ls`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live
from rich.markup import escape

from prorl_cli.cli import registry
from prorl_cli.errors import ProrlError, UserError
from prorl_cli.report import Status, Tally, read_brief, read_status, render_live, render_summary
from prorl_cli.report.jobs import JobStatus, JobWatch, read_jobs
from prorl_cli.report.samples import Wanted, pick_samples, transcript
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.child import tail
from prorl_cli.slurm.queued import submitted
from prorl_cli.spool.weights import latest_weights, read_weights
from prorl_cli.trajectory import Trajectory

LIVE_STATES = ("queued", "starting", "running", "stopping")


def status(root: Path, as_json: bool, follow: bool, once: bool) -> None:
    """Print the picture as JSON or once; on a terminal, or when told to follow, redraw it until the run ends."""
    run = RunDir.open(root)
    watch = JobWatch(run)
    now = read_status(run, jobs=watch.look())
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(now), indent=2).decode())
        return
    console = Console()
    if (follow or (console.is_terminal and not once)) and now.state in LIVE_STATES:
        now = _follow(run, watch, console)
    console.print(render_live(now) if now.state in LIVE_STATES else render_summary(now), soft_wrap=True)


def _follow(run: RunDir, watch: JobWatch, console: Console) -> Status:
    tally = Tally(run)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (now := read_status(run, tally, watch.look())).state in LIVE_STATES:
            live.update(render_live(now), refresh=True)
            time.sleep(1.0)
    return now


def order_of(*, worst: bool, best: bool, failed: bool) -> str:
    """The one order asked for; `UserError` for more than one."""
    chosen = [name for name, given in (("worst", worst), ("best", best), ("failed", failed)) if given]
    if len(chosen) > 1:
        raise UserError(f"choose one of --{' and --'.join(chosen)}")
    return chosen[0] if chosen else "newest"


def samples(root: Path, order: str, step: int | None, count: int, as_json: bool) -> None:
    """Print transcripts; what the policy wrote stands out from what it was given."""
    run = RunDir.open(root)
    found = pick_samples(run, Wanted(order=order, step=step, count=count))
    decode = _decoder(run)
    if as_json:
        print(json.dumps([_as_json(trajectory, decode) for trajectory in found], indent=2))
        return
    console = Console()
    if not found:
        console.print("no such trajectories")
    for trajectory in found:
        _print_sample(console, trajectory, decode)


def _print_sample(console: Console, trajectory: Trajectory, decode: Callable[[list[int]], str]) -> None:
    oldest, newest = trajectory.versions
    console.rule(f"{trajectory.id}  {trajectory.task.domain}", align="left")
    console.print(
        f"reward {trajectory.reward:.2f}  {trajectory.stop_reason}  weights {oldest}–{newest}  "
        f"{len(trajectory.tool_calls)} tool calls  {_boxes(trajectory)}{trajectory.worker}",
        style="dim", highlight=False,
    )  # fmt: skip
    if trajectory.verdict:
        console.print(escape(trajectory.verdict), style="dim", highlight=False)
    for author, text in transcript(trajectory, decode):
        console.print(f"[bold cyan]{escape(text)}[/]" if author == "policy" else escape(text), end="", highlight=False)
    console.print(f"\n[red]{escape(trajectory.error)}[/]" if trajectory.error else "")


def _boxes(trajectory: Trajectory) -> str:
    diverged = ", diverged" if trajectory.diverged else ""
    return f"{trajectory.replays} replays{diverged}  " if trajectory.replays else ""


def _as_json(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> dict[str, object]:
    return {
        "id": trajectory.id, "domain": trajectory.task.domain, "reward": trajectory.reward,
        "stop_reason": trajectory.stop_reason, "error": trajectory.error, "answer": trajectory.answer,
        "verdict": trajectory.verdict, "replays": trajectory.replays, "diverged": trajectory.diverged,
        "versions": trajectory.versions, "tool_calls": msgspec.to_builtins(trajectory.tool_calls),
        "transcript": [{"author": author, "text": text} for author, text in transcript(trajectory, decode)],
    }  # fmt: skip


def _decoder(run: RunDir) -> Callable[[list[int]], str]:
    found = read_weights(run, latest_weights(run))
    if found is None:
        return lambda ids: " ".join(map(str, ids))
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ProrlError("reading transcripts needs the tokenizers package: pip install 'prorl[train]'") from None
    tokenizer = Tokenizer.from_file(str(found[0] / "tokenizer.json"))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def logs(root: Path, role: str, lines: int, follow: bool) -> None:
    """Print the ends of the newest attempt's logs, then what is added to them, and those of later attempts."""
    run = RunDir.open(root)
    files = _log_files(run, role)
    if not files:
        known = sorted({file.stem for file in _log_files(run, "")})
        raise UserError(f"no log of {role or 'any role'!r} in {run.logs}; there are: {', '.join(known) or 'none yet'}")
    ends = {}
    for file in files:
        print(f"── {_title(file)}\n{tail(file, lines) or '(empty)'}")
        ends[file] = file.stat().st_size
    while follow:
        time.sleep(0.5)
        for file in _log_files(run, role):
            ends[file] = _print_from(file, ends.get(file, 0))


def _log_files(run: RunDir, role: str) -> list[Path]:
    """Those of the newest attempt, and what its Slurm job said itself (`job`)."""
    folder = run.latest_logs.resolve()
    roles = sorted(folder.glob("*.log")) if folder.is_dir() else []
    own = [run.job_log(job.token, job.job_id) for job in submitted(run) if job.satellite is None][-1:]
    return [file for file in [*own, *roles] if file.exists() and _title(file).partition(" ")[0].startswith(role)]


def _title(file: Path) -> str:
    return f"job {file.stem.removeprefix('slurm-')}" if file.stem.startswith("slurm-") else file.stem


def _print_from(file: Path, start: int) -> int:
    with file.open("rb") as text:
        text.seek(start)
        for line in text.read().decode(errors="replace").splitlines():
            print(f"{_title(file)}: {line}", flush=True)
        return text.tell()


def doctor(as_json: bool, shared: Path | None, partition: str) -> int:
    """Print every finding; 1 when something will not work here."""
    from prorl_cli.report.doctor import examine_cluster
    from prorl_cli.report.findings import findings_table
    from prorl_cli.report.node import examine_node
    from prorl_cli.report.sharing import measure

    found = [*examine_cluster(), *examine_node(), *(measure(shared, partition) if shared else [])]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        Console().print(findings_table(found))
    return 1 if any(finding.verdict == "bad" for finding in found) else 0


def list_runs(as_json: bool) -> None:
    """One line a run, all their jobs asked for at once."""
    runs, unreadable = _openable(registry.remembered())
    rows = [_row(run, jobs) for run, jobs in zip(runs, read_jobs(runs), strict=True)] + unreadable
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        job = f"  job {row['job']} {row['job_state']}" if row.get("job") else ""
        print(f"{row['state']:<10} {row['step']:>5}/{row['steps']:<5} {row['run']}{job}")


def _openable(roots: list[Path]) -> tuple[list[RunDir], list[dict[str, object]]]:
    runs, rows = [], []
    for root in roots:
        try:
            runs.append(RunDir.open(root))
        except ProrlError as error:
            rows.append(_unreadable(root, error))
    return runs, rows


def _row(run: RunDir, jobs: list[JobStatus]) -> dict[str, object]:
    try:
        found = read_brief(run, jobs)
    except ProrlError as error:
        return _unreadable(run.root, error)
    row: dict[str, object] = {"run": str(run.root), "state": found.state, "step": found.step, "steps": found.steps}
    return {**row, "job": found.job.id, "job_state": found.job.state} if found.job else row


def _unreadable(root: Path, error: ProrlError) -> dict[str, object]:
    return {"run": str(root), "state": "unreadable", "step": 0, "steps": 0, "why": str(error)}
