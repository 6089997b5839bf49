"""A run as Slurm jobs: checked against the cluster, submitted, followed to its end."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live

from prorl_cli.cli.ending import show_end
from prorl_cli.cli.painter import Painter
from prorl_cli.errors import RecipeError, Unfinished, UserError
from prorl_cli.recipe import Recipe, counted
from prorl_cli.report import shown
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.commands import ControllerDown, SlurmError, slurm
from prorl_cli.slurm.plan import has_satellites
from prorl_cli.slurm.preflight import inspect
from prorl_cli.slurm.queued import Held, cancel_waiting, held
from prorl_cli.slurm.script import render, render_steps
from prorl_cli.slurm.submit import new_token, sbatch_line, submit
from prorl_cli.spool.members import Outcome, StopOrder, current_attempt, order_stop, read_claim, read_outcome

ASK_S = 10.0
"""Between two questions to the controller about a job that is followed."""

LOOK_S = 0.5

LOOKS = 3
"""A job that is changing its state may be missed once, so it is gone when it was missed this often."""


def cluster_problems(recipe: Recipe, root: Path) -> tuple[str, ...]:
    """Everything that the cluster would refuse; what is only doubtful is said."""
    found = inspect(recipe, root)
    console = Console(stderr=True)
    for doubt in found.doubts:
        console.print(f"note: {doubt}", style="yellow", markup=False, soft_wrap=True)
    return found.errors


def check_cluster(recipe: Recipe, root: Path) -> None:
    """`RecipeError` with everything that the cluster would refuse."""
    if errors := cluster_problems(recipe, root):
        told = "\n".join(f"  {text}" for text in errors)
        raise RecipeError(f"this cluster cannot run it: {counted(list(errors))}\n{told}")


def shown_submission(recipe: Recipe, root: Path) -> str:
    """What `launch` would submit, for `--dry-run`: command, script, and what each process is started through."""
    run, token = RunDir(root), "dry-run"
    parts = [f"run directory  {root}", f"submitted by   {sbatch_line(run, token)}"]
    texts = {run.script(token): render(recipe, root, token)}
    if has_satellites(recipe):
        texts[run.script("satellite")] = render(recipe, root, "satellite", satellite=0)
    texts |= {run.step_script(token, name): text for name, text in render_steps(recipe, root).items()}
    return "\n".join([*parts, *(f"\n── {path}\n{text.rstrip()}" for path, text in texts.items())])


def first_submission(run: RunDir, recipe: Recipe, wait: bool) -> int:
    """Submit the first job of a new run; a run that Slurm refuses leaves nothing behind."""
    try:
        return next_submission(run, recipe, None, wait)
    except ControllerDown:
        raise  # it may have arrived: `resume` and `stop` look for it by its token
    except UserError:
        shutil.rmtree(run.root, ignore_errors=True)
        raise


def next_submission(run: RunDir, recipe: Recipe, restore: int | None, wait: bool) -> int:
    """Submit a job that goes on with the run."""
    before = current_attempt(run)
    job_id = submit(run, recipe, new_token(), restore=restore)
    name = shown(run.root)
    lines = [
        f"job {job_id} submitted", f"run directory {run.root}", f"  prorl status {name}", f"  prorl logs {name} -f",
        f"  prorl explain {name}", f"  prorl stop {name}",
    ]  # fmt: skip
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    return follow(run, before) if wait else 0


def follow(run: RunDir, before: int) -> int:
    """Until the run has ended behind attempt `before`; returns the exit code of the run."""
    try:
        return show_end(run, _followed(run, before))
    except KeyboardInterrupt:
        raise Unfinished(f"no longer followed; the job goes on: prorl stop {shown(run.root)} ends it") from None


def _followed(run: RunDir, before: int) -> Outcome:
    jobs = _Jobs(run)
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False) as live:
        painters: dict[int, Painter] = {}
        while True:
            attempt = current_attempt(run)
            outcome = read_outcome(run, attempt) if attempt > before else None
            if outcome is not None and (outcome.state != "stopped" or not jobs.alive()):
                return outcome
            if outcome is None and not jobs.alive():
                raise Unfinished(f"no job of the run is left, and none said how it ended: prorl explain {run.root}")
            if attempt > before:
                painters.setdefault(attempt, Painter(run, attempt, live)).tick([])
            else:
                jobs.say(live.console)
            time.sleep(LOOK_S)


class _Jobs:
    """What Slurm holds of a run, asked for now and then."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._next = 0.0
        self._missed = 0
        self._found: list[Held] = []
        self._said = ""

    def alive(self) -> bool:
        """Whether a job of the run waits or runs, or nobody knows."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + ASK_S
            with contextlib.suppress(SlurmError):
                self._found = [found for found in held(self._run) if found.job.satellite is None]
                self._missed = 0 if self._found else self._missed + 1
        return self._missed < LOOKS

    def say(self, console: Console) -> None:
        """The state of the newest job, when it changes."""
        last = self._found[-1] if self._found else None
        words = f"job {last.job.job_id} is {last.state}" + (f" ({last.reason})" if last.reason else "") if last else ""
        if words and words != self._said:
            self._said = words
            console.print(words, markup=False, soft_wrap=True)


def stop_jobs(run: RunDir, order: StopOrder) -> str:
    """Order the running attempt to stop, cancel what waits; what was done, in words, empty when there was nothing."""
    attempt = current_attempt(run)
    running = [found.job.job_id for found in held(run) if not found.waits and found.job.satellite is None]
    words = []
    if running:
        words.append(f"stop ordered for job {running[-1]}")
        if attempt:
            order_stop(run, attempt, order)
        if (read_claim(run, attempt) or {}).get("job_id") != running[-1]:
            slurm(["scancel", str(running[-1])])  # it has not begun its attempt, so nobody would read the order
    if cancelled := cancel_waiting(run):
        words.append(f"cancelled in the queue: {', '.join(map(str, cancelled))}")
    return "; ".join(words)
