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
from prorl_cli.report import Tally, read_status, render_live, render_summary
from prorl_cli.report.samples import Wanted, pick_samples, transcript
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.child import tail
from prorl_cli.spool.weights import latest_weights, read_weights
from prorl_cli.trajectory import Trajectory

LIVE_STATES = ("starting", "running", "stopping")


def status(root: Path, as_json: bool, follow: bool) -> None:
    """Print the picture once, as JSON, or again and again until the run ends."""
    run = RunDir.open(root)
    now = read_status(run)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(now), indent=2).decode())
        return
    if follow and now.state in LIVE_STATES:
        with Live(auto_refresh=False) as live:
            tally = Tally(run)
            while (now := read_status(run, tally)).state in LIVE_STATES:
                live.update(render_live(now), refresh=True)
                time.sleep(1.0)
    Console().print(render_live(now) if now.state in LIVE_STATES else render_summary(now), soft_wrap=True)


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
        f"{len(trajectory.tool_calls)} tool calls  {trajectory.worker}",
        style="dim", highlight=False,
    )  # fmt: skip
    for author, text in transcript(trajectory, decode):
        console.print(f"[bold cyan]{escape(text)}[/]" if author == "policy" else escape(text), end="", highlight=False)
    console.print(f"\n[red]{escape(trajectory.error)}[/]" if trajectory.error else "")


def _as_json(trajectory: Trajectory, decode: Callable[[list[int]], str]) -> dict[str, object]:
    return {
        "id": trajectory.id, "domain": trajectory.task.domain, "reward": trajectory.reward,
        "stop_reason": trajectory.stop_reason, "error": trajectory.error, "answer": trajectory.answer,
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
    """Print the ends of the newest attempt's logs, then what is added to them."""
    run = RunDir.open(root)
    folder = run.latest_logs.resolve()
    files = sorted(folder.glob(f"{role}*.log"))
    if not files:
        known = sorted({file.stem for file in folder.glob("*.log")})
        raise UserError(f"no log of {role or 'any role'!r} in {folder}; there are: {', '.join(known) or 'none'}")
    ends = {}
    for file in files:
        print(f"── {file.stem}\n{tail(file, lines) or '(empty)'}")
        ends[file] = file.stat().st_size
    while follow:
        time.sleep(0.5)
        ends = {file: _print_from(file, ends.get(file, 0)) for file in sorted(folder.glob(f"{role}*.log"))}


def _print_from(file: Path, start: int) -> int:
    with file.open("rb") as text:
        text.seek(start)
        for line in text.read().decode(errors="replace").splitlines():
            print(f"{file.stem}: {line}")
        return text.tell()


def list_runs(as_json: bool) -> None:
    """One line a run."""
    rows = []
    for root in registry.remembered():
        try:
            found = read_status(RunDir.open(root))
            rows.append({"run": str(root), "state": found.state, "step": found.step, "steps": found.steps})
        except ProrlError as error:
            rows.append({"run": str(root), "state": "unreadable", "step": 0, "steps": 0, "why": str(error)})
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['state']:<10} {row['step']:>5}/{row['steps']:<5} {row['run']}")
