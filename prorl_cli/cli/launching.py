"""`launch`, `resume`, `eval`: from a recipe to an attempt, from an attempt to an exit code."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from prorl_cli.cli import preflight, queueing, registry
from prorl_cli.cli.changes import differences
from prorl_cli.cli.claim import claim, refuse_if_at_work
from prorl_cli.cli.ending import show_end
from prorl_cli.cli.painter import Painter
from prorl_cli.cli.pinning import absent_here, pinned
from prorl_cli.cli.snapshot import provenance, snapshot_code
from prorl_cli.errors import RunDirError, Unfinished, UserError
from prorl_cli.fsio import publish
from prorl_cli.recipe import Recipe, with_overrides
from prorl_cli.report import read_status
from prorl_cli.report.status import read_recipe
from prorl_cli.rundir import RunDir, find_recipe
from prorl_cli.slurm import plan_processes, supervise
from prorl_cli.spool.members import Outcome, StopOrder, current_attempt, order_stop, read_outcome, read_stop
from prorl_cli.wire import certificate

DRAIN_S = 60.0
"""What one Ctrl-C gives running episodes."""


def launch(
    file: Path, run_dir: Path | None, overrides: tuple[str, ...], *, dry_run: bool, wait: bool, check: bool
) -> int:  # fmt: skip
    """Check, make the run directory, run or submit; returns the exit code."""
    file = find_recipe(file)

    def further(recipe: Recipe) -> tuple[str, ...]:
        asked = recipe.cluster.executor == "slurm" and check and not dry_run
        return queueing.cluster_problems(recipe, _root(run_dir, recipe)) if asked else ()

    recipe = preflight.checked(file, overrides, further)
    root, on_slurm = _root(run_dir, recipe), recipe.cluster.executor == "slurm"
    if dry_run:
        print(queueing.shown_submission(recipe, root) if on_slurm else _shown_processes(recipe, root))
        return 0
    run = _create(root, file, recipe)
    return queueing.first_submission(run, recipe, wait) if on_slurm else show_end(run, _attempt(run, recipe))


def resume(root: Path, overrides: tuple[str, ...], restore: int | None, *, wait: bool, check: bool) -> int:
    """Start or submit the next attempt of a run; returns the exit code."""
    run = RunDir.open(root)
    last = max(run.attempts(), default=1)
    before = read_recipe(run, last)
    changed = with_overrides(before, overrides)
    if restore is None and changed == before and (ended := read_outcome(run, last)) and ended.state == "done":
        print(f"{root} is done: {ended.reason}; go further with --set learner.steps=N")
        return 0
    recipe = pinned(changed)
    for line in differences(before, recipe, max(run.weight_folders(), default=0)):
        print(line)
    if restore is not None and restore not in (0, *run.checkpoint_steps()):
        kept = ", ".join(map(str, [0, *run.checkpoint_steps()]))
        raise UserError(f"there is no checkpoint of step {restore} to restore; there are: {kept}")
    if recipe.cluster.executor == "local":
        if absent := absent_here(recipe):
            raise UserError(absent[0])
        return show_end(run, _attempt(run, recipe, restore))
    refuse_if_at_work(run, current_attempt(run))
    if check:
        queueing.check_cluster(recipe, run.root)
    return queueing.next_submission(run, recipe, restore, wait)


def evaluate(
    model: Path, file: Path, run_dir: Path | None, overrides: tuple[str, ...], *, as_json: bool, slurm: bool
) -> int:  # fmt: skip
    """Roll out only the held-out tasks with `model`'s weights, here or on a node; prints pass@1."""
    fixed = (f"model={json.dumps(str(model.absolute()))}", "learner.steps=0", "cluster.executor=local")
    file = find_recipe(file)
    recipe = preflight.checked(file, (*overrides, *fixed))
    if not recipe.eval.n:
        raise UserError(f"{file} has no `eval.n`: add `--set eval.n=256`")
    root = (run_dir or _default_folder(f"eval-{recipe.name}")).absolute()
    run = _create(root, file, recipe)
    outcome = _on_a_node(run, recipe) if slurm else _attempt(run, recipe)
    if outcome.state == "done" and as_json:
        found = read_status(run).eval["before"]
        print(json.dumps({"pass_at_1": found.pass_at_1, "stderr": found.stderr, "n": found.n}))
        return 0
    return show_end(run, outcome)


def _on_a_node(run: RunDir, recipe: Recipe) -> Outcome:
    """All roles on one node as engines are asked for: an evaluation has no learner."""
    from prorl_cli.cli.fanout import call_on_a_node

    asked = recipe.cluster.engine
    return call_on_a_node(run.jobs / "eval", f"eval-{recipe.name}", recipe.cluster, asked, _attempt, run, recipe)


def _create(root: Path, file: Path, recipe: Recipe) -> RunDir:
    fresh = not root.exists()
    run = RunDir(root)
    try:
        run.create()
        run.secure(*certificate.make())
        publish(run.recipe, file.read_bytes())
        publish(run.provenance, json.dumps(provenance(), indent=2).encode())
        publish(run.resolved(1), recipe.model_dump_json(indent=2).encode())
        snapshot_code(run, recipe)
    except (UserError, OSError) as error:
        if fresh:
            shutil.rmtree(root, ignore_errors=True)
        if isinstance(error, UserError):
            raise
        raise RunDirError(f"cannot create the run directory {root}: {error}") from error
    registry.remember(root)
    return run


def _attempt(run: RunDir, recipe: Recipe, restore: int | None = None) -> Outcome:
    """Claim the next attempt and run it to its outcome under the live view."""
    number = claim(run, recipe, restore)
    console = Console(stderr=True)
    signal.signal(signal.SIGINT, lambda *_: _interrupted(run, number, console))
    signal.signal(signal.SIGTERM, lambda *_: order_stop(run, number, StopOrder(mode="now", deadline_s=0.0)))
    console.print(f"run directory {run.root}", markup=False, soft_wrap=True)
    plan = plan_processes(recipe, has_weights=bool(run.weight_folders()))
    try:
        with Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False) as live:
            return supervise(run, number, plan, recipe.cluster.restarts, Painter(run, number, live))
    except RunDirError as error:
        raise Unfinished(f"the run stopped: {error}") from error


def _interrupted(run: RunDir, attempt: int, console: Console) -> None:
    if read_stop(run, attempt) is None:
        order_stop(run, attempt, StopOrder(mode="drain", deadline_s=DRAIN_S))
        console.print(f"draining for at most {DRAIN_S:.0f} s; Ctrl-C again stops at once")
    else:
        order_stop(run, attempt, StopOrder(mode="now", deadline_s=0.0))


def _root(run_dir: Path | None, recipe: Recipe) -> Path:
    return (run_dir or _default_folder(recipe.name)).absolute()


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _shown_processes(recipe: Recipe, root: Path) -> str:
    return "\n".join([f"run directory  {root}", *plan_processes(recipe, has_weights=False).lines(root)])
