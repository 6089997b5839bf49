"""The texts of a submission: the batch script and what each step is started through. Pure but for reading templates.

The templates are flat; every decision is here. No value that is a path stands in a `#SBATCH` line, every other one is
quoted there, and what a later component would inherit it says for itself. Called by `submit` and `launch --dry-run`.
"""

from __future__ import annotations

import re
import shlex
import string
import sys
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import Cluster, Component
from prorl_cli.rundir import RunDir, shipped
from prorl_cli.slurm import shape
from prorl_cli.slurm.grammar import gpu_directive, memory_text, time_text
from prorl_cli.slurm.plan import ComponentName, Process

SBATCH = ("sbatch", "--parsable", "job.sh")
"""The whole command, called in the submission's folder: an option here would apply to every component."""

IMAGE_PYTHON = "python3"
"""The interpreter inside `cluster.<component>.image`."""


class _Text(string.Template):
    """`@{name}` is ours; bash's own `$`, braces and `user@host` stay as they are."""

    delimiter = "@"
    pattern = r"@(?:(?P<escaped>(?!))|(?P<named>(?!))|\{(?P<braced>[a-z_]+)\}|(?P<invalid>(?!)))"  # type: ignore[assignment]


def render(
    recipe: Recipe, root: Path, token: str, *, python: str = sys.executable, after: int | None = None,
    satellite: int | None = None,
) -> str:  # fmt: skip
    """The batch script of the job, which waits for the end of job `after`, or of a `satellite`: for its start."""
    if found := shape.mistakes(recipe):
        raise UserError("\n".join(found))
    asked = shape.groups(recipe) if satellite is None else (shape.satellite_group(recipe),)
    first = _of_the_job(recipe, token, after) if satellite is None else _of_a_satellite(recipe, token, after, satellite)
    components = ("\n".join(_of_a_group(recipe.cluster, group)) for group in asked)
    return _fill(
        recipe.cluster, "job.sh", directives="\n".join([*first, "\n#SBATCH hetjob\n".join(components)]),
        run_dir=shlex.quote(str(root)), token=shlex.quote(token), python=shlex.quote(python),
        setup=recipe.cluster.setup.strip("\n"),
    )  # fmt: skip


def render_steps(recipe: Recipe, root: Path, *, python: str = sys.executable) -> dict[ComponentName, str]:
    """For each component the script that its processes are started through."""
    return {
        name: _fill(
            recipe.cluster, "step.sh", component=name, setup=recipe.cluster.setup.strip("\n"),
            interpreter=shlex.join(_interpreter(recipe, root, shape.component(recipe.cluster, name), python)),
        )
        for name in ("control", "rollout", "engine", "learner")
    }  # fmt: skip


def step_command(run: RunDir, token: str, process: Process) -> list[str]:
    """The argv of one process where `cluster.setup` and an image apply; srun's own options come before it."""
    return ["bash", str(run.step_script(token, process.component)), *process.arguments(run.root)]


def comment(token: str) -> str:
    """What `squeue -o %k` shows of this submission; its folder is the job's working directory."""
    return f"prorl:{token}"


def _of_the_job(recipe: Recipe, token: str, after: int | None) -> Iterator[str]:
    """What the first component says for all, and what a run needs once however many jobs it has."""
    cluster = recipe.cluster
    yield from _of_any_job(cluster, recipe.name, token)
    if after is not None:
        yield _directive("dependency", f"afterany:{after}")
    if cluster.mail:
        yield _directive("mail-user", cluster.mail)
        yield _directive("mail-type", "END,FAIL,REQUEUE")
    if cluster.licenses:
        yield _directive("licenses", cluster.licenses)


def _of_a_satellite(recipe: Recipe, token: str, after: int | None, number: int) -> Iterator[str]:
    """It waits for the start of the job that it serves, not for the end."""
    yield from _of_any_job(recipe.cluster, f"{recipe.name}-rollout-{number}", token)
    if after is not None:
        yield _directive("dependency", f"after:{after}")


def _of_any_job(cluster: Cluster, name: str, token: str) -> Iterator[str]:
    yield _directive("job-name", re.sub("(?i)(het|pack)(job)", r"\1-\2", name))
    yield _directive("comment", comment(token))
    yield _directive("open-mode", "append")
    yield _directive("signal", f"B:USR2@{shape.signal_s(cluster)}")


def _of_a_group(cluster: Cluster, group: shape.Group) -> Iterator[str]:
    """What every component says for itself, whether or not the one before it said the same."""
    asked = group.component
    values = {
        "partition": asked.partition,
        "account": asked.account or cluster.account,
        "qos": asked.qos or cluster.qos,
        "reservation": asked.reservation,
        "constraint": asked.constraint,
        "time": time_text(cluster.time) if cluster.time else "",
        "nodes": str(group.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(asked.cpus or ""),
        "mem": memory_text(asked.memory) if asked.memory else "",
        "propagate": "NONE",
    }
    yield from (_directive(key, value) for key, value in values.items() if value)
    if asked.gpus:
        yield _directive(*gpu_directive(cluster, asked))
    if asked.exclusive:
        yield "#SBATCH --exclusive"
    yield "#SBATCH --requeue" if cluster.requeue else "#SBATCH --no-requeue"
    for option in asked.extra:
        key, equals, value = option.removeprefix("--").partition("=")
        yield _directive(key, value) if equals else f"#SBATCH --{key}"


def _directive(key: str, value: str) -> str:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{key}="{quoted}"'


def _interpreter(recipe: Recipe, root: Path, asked: Component, python: str) -> list[str]:
    if not asked.image:
        return [python]
    folders = [str(root), *(path for path in _read_by_roles(recipe) if path.startswith("/"))]
    mounts = [f"type=bind,{_csv(f'source={path}')},{_csv(f'destination={path}')}" for path in folders]
    return [
        "apptainer", "exec", *(["--nv"] if asked.gpus else []),
        *(word for mount in mounts for word in ("--mount", mount)), asked.image, IMAGE_PYTHON,
    ]  # fmt: skip


def _read_by_roles(recipe: Recipe) -> Iterator[str]:
    yield recipe.model
    yield from dict.fromkeys(spec.source for spec in recipe.tasks)


def _csv(field: str) -> str:
    """One field of apptainer's `--mount`, which is a line of CSV."""
    return '"' + field.replace('"', '""') + '"' if re.search(r'[",\n]', field) else field


def _fill(cluster: Cluster, name: str, **values: str) -> str:
    own = Path(cluster.templates).expanduser() / name if cluster.templates else None
    file = own if own is not None and own.is_file() else shipped("slurm_templates") / name
    template = _Text(file.read_text(encoding="utf-8"))
    if unknown := set(template.get_identifiers()) - values.keys():
        raise UserError(f"{file}: unknown placeholder {', '.join(sorted(unknown))}; there are {', '.join(values)}")
    return template.substitute(values)
