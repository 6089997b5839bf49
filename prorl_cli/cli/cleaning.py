"""`clean`: what a run directory holds, and what of it nobody needs any more."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.cli.claim import at_work
from prorl_cli.errors import UserError
from prorl_cli.fsio.publishing import TEMPORARY
from prorl_cli.report import shown
from prorl_cli.report.status import read_recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.evals import evaluations
from prorl_cli.spool.members import current_attempt


@dataclass(frozen=True, slots=True)
class Kept:
    """Steps whose weights, and whose checkpoints, stay."""

    weights: frozenset[int]
    checkpoints: frozenset[int]


def clean(root: Path, yes: bool) -> None:
    """Print sizes by kind and what may go; with `yes` remove the latter."""
    run = RunDir.open(root)
    loss = losable(run)
    _print_kinds(run, loss)
    if not loss:
        print("nothing in it may go")
    elif not yes:
        print(f"{_mib(sum(map(size, loss)))} may go: `prorl clean {shown(root)} --yes` removes it")
    else:
        _remove(run, loss)


def _remove(run: RunDir, loss: list[Path]) -> None:
    if at_work(run, current_attempt(run)):
        raise UserError(f"{run.root} is running: stop it first with `prorl stop {shown(run.root)}`")
    freed = sum(map(size, loss))
    for path in loss:
        if not path.is_dir():
            path.unlink(missing_ok=True)
        elif path.name.startswith(TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
        else:
            fsio.remove_folder(path)
    print(f"removed {len(loss)} files and folders, {_mib(freed)}")


def losable(run: RunDir) -> list[Path]:
    """Weights and checkpoints that neither a resume, an export nor a reader needs, and what killed writers left."""
    scores = {version: found.pass_at_1 for version, found in evaluations(run).items()}
    keep = kept(
        list(run.weight_folders()),
        run.checkpoint_steps(),
        scores,
        read_recipe(run, current_attempt(run)).rollout.max_staleness,
    )
    weights = [path for path in _folders(run.weights) if _step(path) not in keep.weights]
    checkpoints = [path for path in _folders(run.checkpoints) if _step(path) not in keep.checkpoints]
    return [*weights, *checkpoints, *_leftovers(run.root)]


def kept(weights: list[int], checkpoints: list[int], scores: dict[int, float], max_staleness: int) -> Kept:
    """The newest checkpoint and every version since, which a resume replays; the first weights, which are the
    reference; the newest ones; the best evaluated. Pure."""
    newest = max(checkpoints, default=0)
    recent = sorted(weights)[-(max_staleness + 2) :]
    evaluated = [version for version in weights if version in scores]
    best = [max(evaluated, key=lambda version: (scores[version], version))] if evaluated else []
    since = [version for version in weights if version >= newest]
    return Kept(weights=frozenset([0, newest, *recent, *best, *since]), checkpoints=frozenset([newest]))


def _folders(parent: Path) -> list[Path]:
    return sorted(path for path in parent.iterdir() if path.is_dir() and path.name[:6].isdigit())


def _step(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _leftovers(root: Path) -> list[Path]:
    return [
        Path(folder) / name
        for folder, folders, files in os.walk(root)
        if not Path(folder).name.startswith(TEMPORARY)
        for name in (*folders, *files)
        if name.startswith(TEMPORARY)
    ]


def size(path: Path) -> int:
    """Bytes on disk of a file, or of everything below a folder."""
    if not path.is_dir() or path.is_symlink():
        return path.lstat().st_blocks * 512 if path.exists() else 0
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files)


def _print_kinds(run: RunDir, loss: list[Path]) -> None:
    kinds = {path.name: path for path in sorted(run.root.iterdir())}
    for name, path in kinds.items():
        may = sum(size(lost) for lost in loss if lost == path or path in lost.parents)
        print(f"{name:<18} {_mib(size(path)):>12}" + (f"   {_mib(may)} may go" if may else ""))


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
