"""Every command of `prorl`, with the help that teaches it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from prorl_cli import __version__
from prorl_cli.cli.cache_app import cache_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train tool-using language models by reinforcement learning.\n\nStart with `prorl init > my.yaml`, "
    "`prorl launch my.yaml`, then `prorl status RUN`. Exit codes: 0 done, 1 the run failed, 2 bad input, "
    "3 stopped unfinished (`prorl resume RUN` goes on).",
)
recipe_app = typer.Typer(no_args_is_help=True, help="About recipes.")
spool_app = typer.Typer(no_args_is_help=True, help="About the files a run is made of.")
app.add_typer(recipe_app, name="recipe")
app.add_typer(spool_app, name="spool")
app.add_typer(cache_app, name="cache")

RecipeFile = Annotated[
    Path, typer.Argument(help="A recipe file, or the name of a shipped one: quickstart.", metavar="RECIPE")
]


def _find(name: Path | None) -> Path:
    from prorl_cli.cli import registry

    return registry.find(name)


Run = Annotated[
    Path,
    typer.Argument(help="A run directory or a job's id; `prorl ls` lists both.", metavar="RUN", callback=_find),
]
OptionalRun = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Argument(help="A run directory or a job's id. Default: your newest run.", metavar="[RUN|JOBID]"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key: --set learner.steps=50. Repeatable.", metavar="KEY=VALUE"),
]
Folder = Annotated[Optional[Path], typer.Option("--run-dir", help="Where the run lives. Default: runs/NAME-TIME.")]  # noqa: UP045
Wait = Annotated[bool, typer.Option("--wait", help="Follow a Slurm job to the run's end, with its exit code.")]
Unchecked = Annotated[bool, typer.Option("--no-preflight", help="Do not ask the cluster whether it can run it.")]
Json = Annotated[bool, typer.Option("--json", help="For machines.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Options of `prorl` itself."""
    if version:
        typer.echo(f"prorl {__version__}")
        raise typer.Exit


@app.command()
def launch(
    recipe: RecipeFile,
    run_dir: Folder = None,
    overrides: Set = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started or submitted, and do neither.")
    ] = False,
    wait: Wait = False,
    unchecked: Unchecked = False,
) -> None:
    """Check a recipe, make its run directory and train: here in the foreground, or as a Slurm job.

    In the foreground Ctrl-C once drains (nothing finished is lost), twice stops at once.
    """
    from prorl_cli.cli import launching

    options = {"dry_run": dry_run, "wait": wait, "check": not unchecked}
    raise typer.Exit(launching.launch(recipe, run_dir, tuple(overrides or ()), **options))


@app.command()
def resume(
    run: Run,
    overrides: Set = None,
    restore: Annotated[
        Optional[int], typer.Option(help="Go back to the checkpoint of this step first.", metavar="STEP")  # noqa: UP045
    ] = None,
    wait: Wait = False,
    unchecked: Unchecked = False,
) -> None:
    """Go on with a run that stopped, failed or was killed. --set shows what changes and refuses what may not."""
    from prorl_cli.cli import launching

    code = launching.resume(run, tuple(overrides or ()), restore, wait=wait, check=not unchecked)
    raise typer.Exit(code)


@app.command()
def stop(
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running episodes.")] = False,
    deadline: Annotated[str, typer.Option(help="How long running episodes may take to finish.")] = "60s",
) -> None:
    """Drain a run and stop it; `prorl resume` goes on later."""
    from prorl_cli.cli import control

    typer.echo(control.stop(run, now, deadline))


@app.command()
def status(
    run: OptionalRun = None,
    as_json: Json = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Redraw until the run ends, as a terminal does.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one picture.")] = False,
) -> None:
    """What a run is doing: throughput, reward, who waits for whom. Also in the queue and after it ended."""
    from prorl_cli.cli import look

    look.status(_find(run), as_json, follow, once)


@app.command()
def explain(run: OptionalRun = None) -> None:
    """Why a run or a job waits or died, in words, and what to do."""
    from prorl_cli.cli import jobs

    jobs.explain(run)


@app.command()
def attach(
    run: Run,
    role: Annotated[str, typer.Argument(help="A role or its slot: learner, engine-0, rollout-1.", metavar="ROLE")],
) -> None:
    """A shell on the node where a role runs, inside its job."""
    from prorl_cli.cli import jobs

    jobs.attach(run, role)


@app.command()
def clean(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what may go.")] = False,
) -> None:
    """What a run directory holds, and what of it may go: old checkpoints and weights, left-overs."""
    from prorl_cli.cli import cleaning

    cleaning.clean(run, yes)


@app.command()
def doctor(
    as_json: Json = False,
    shared: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--shared", help="Also measure this folder between two nodes.", metavar="PATH"),
    ] = None,
    partition: Annotated[str, typer.Option("--partition", help="Where --shared takes its two nodes.")] = "",
) -> None:
    """Whether this cluster and this node can run prorl; each finding with its fix."""
    from prorl_cli.cli import look

    raise typer.Exit(look.doctor(as_json, shared, partition))


@app.command()
def samples(
    run: Run,
    step: Annotated[Optional[int], typer.Option(help="Records of this training step.")] = None,  # noqa: UP045
    worst: Annotated[bool, typer.Option("--worst", help="Lowest reward first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed through no fault of the policy.")] = False,
    count: Annotated[int, typer.Option("-n", min=1, help="How many.")] = 5,
    as_json: Json = False,
) -> None:
    """Read transcripts: what the policy wrote, what its tools answered, what it earned."""
    from prorl_cli.cli import look

    look.samples(run, look.order_of(worst=worst, best=best, failed=failed), step, count, as_json)


@app.command()
def logs(
    run: Run,
    role: Annotated[str, typer.Argument(help="coordinator, router, engine, rollout, learner or warmstart.")] = "",
    lines: Annotated[int, typer.Option("-n", min=1, help="Lines of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they are written.")] = False,
) -> None:
    """The logs of a run's roles."""
    from prorl_cli.cli import look

    look.logs(run, role, lines, follow)


@app.command("ls")
def list_runs(as_json: Json = False) -> None:
    """The runs started by this user, newest first."""
    from prorl_cli.cli import look

    look.list_runs(as_json)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="Folder to make.", metavar="OUT")],
    best: Annotated[bool, typer.Option("--best", help="The best evaluated weights, not the newest.")] = False,
) -> None:
    """Copy a run's weights to a folder that transformers loads."""
    from prorl_cli.cli import control

    typer.echo(control.export(run, out, best))


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Argument(help="A Hugging Face folder.", metavar="MODEL")],
    recipe: RecipeFile,
    overrides: Set = None,
    run_dir: Folder = None,
    as_json: Json = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="On a node of the cluster, as `cluster.engine` asks.")] = False,
) -> None:
    """pass@1 of a model on a recipe's held-out tasks (T = 1, one sample a task)."""
    from prorl_cli.cli import launching

    changes = tuple(overrides or ())
    raise typer.Exit(launching.evaluate(model, recipe, run_dir, changes, as_json=as_json, slurm=slurm))


@app.command()
def validate(recipe: RecipeFile, overrides: Set = None) -> None:
    """Check a recipe, its model and its tasks; every mistake at once."""
    from prorl_cli.cli import preflight

    typer.echo(preflight.validate(recipe, tuple(overrides or ())))


@app.command()
def init() -> None:
    """Print a commented recipe to start from: every key, its meaning, its default."""
    from prorl_cli.recipe import starter_text

    typer.echo(starter_text(), nl=False)


@recipe_app.command()
def schema() -> None:
    """The recipe's JSON schema, for editors."""
    import json

    from prorl_cli.recipe import Recipe

    typer.echo(json.dumps(Recipe.model_json_schema(), indent=2))


@spool_app.command()
def verify(run: Run, as_json: Json = False) -> None:
    """Check every stored byte of a run: requests, trajectories, steps, weights."""
    from prorl_cli.cli import control

    raise typer.Exit(control.verify(run, as_json))
