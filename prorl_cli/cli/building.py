"""`prorl cache build`: many images at once, here or as a job each; what fails keeps none of the others.

Refuses everything that can be refused before the first is begun. Called by `cache_app`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prorl_cli.cli.definitions import arguments_of, shared_out, wanted
from prorl_cli.cli.fanout import awaited, submitted
from prorl_cli.cli.rows import Row, Rows, opened_rows
from prorl_cli.errors import ProrlError, Unfinished, UserError
from prorl_cli.recipe import Recipe

if TYPE_CHECKING:
    from prorl_cli.images import Definition, Image, Mode

LOGS_S = 30 * 86400.0
"""How long the folder of a job is kept that nobody took the result of: longer than a job waits or runs."""

_STATES = {"RUNNING": "building", "PENDING": "queued"}
"""Of a job, in the words of a row."""

Build = Callable[["Definition", Row], "Image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command."""

    mode: str
    jobs: int | None
    """Images at once; None = one here, all as jobs."""
    slurm: bool
    base: str
    arguments: tuple[str, ...]


def build(words: Sequence[str], asked: Asked, as_json: bool) -> int:
    """Build what `words` mean; 1 when an image failed."""
    from prorl_cli.images import cache_root

    mode = _mode(asked.mode)
    found = wanted(words, Path())
    arguments = shared_out(arguments_of(asked.arguments, asked.base), found.files)
    definitions = _read(arguments)
    _refuse_same_names(definitions)
    root = cache_root()
    there = _as_a_job(_with_cluster(found.recipe), root, mode, arguments) if asked.slurm else None
    with opened_rows([definition.name for definition in definitions], as_json) as rows:
        return _all(definitions, there or _here(root, mode, min(asked.jobs or 1, len(definitions))), rows, asked)


def _mode(word: str) -> Mode:
    from prorl_cli.images import MODES

    for mode in MODES:
        if mode == word:
            return mode
    raise UserError(f"--mode {word}: there are {', '.join(MODES)}")


def _read(arguments: Mapping[Path, dict[str, str]]) -> list[Definition]:
    """All of them, or all that is wrong with any."""
    from prorl_cli.images import read_definition

    definitions, mistakes = [], []
    for path, given in arguments.items():
        try:
            definitions.append(read_definition(path, given))
        except UserError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UserError("\n".join(mistakes))
    return definitions


def _refuse_same_names(definitions: Sequence[Definition]) -> None:
    paths: dict[str, Path] = {}
    for definition in definitions:
        other = paths.setdefault(definition.name, definition.path)
        if other != definition.path:
            raise UserError(f"{other} and {definition.path} would both be the image {definition.name!r}: rename one")


def _with_cluster(recipe: Recipe | None) -> Recipe:
    if recipe is None:
        raise UserError("--slurm needs a recipe, whose `cluster` says where: prorl cache build RECIPE [DEF…] --slurm")
    if not recipe.cluster.time:
        raise UserError("--slurm needs a time limit for its jobs: write `cluster: {time: 2h}` in the recipe")
    return recipe


def _here(root: Path, mode: Mode, at_once: int) -> Build:
    from prorl_cli.images import Store

    def build_one(definition: Definition, row: Row) -> Image:
        return Store(root, at_once=at_once).build(definition, mode, tell=row.say)

    return build_one


def _as_a_job(recipe: Recipe, root: Path, mode: Mode, arguments: Mapping[Path, dict[str, str]]) -> Build:
    """What is there already needs no job."""
    from prorl_cli.images import Store, facts_here, key

    one_at_a_time, folders = threading.Lock(), root / "jobs"
    _forget_old(folders)

    def build_one(definition: Definition, row: Row) -> Image:
        made = Store(root).find(key(definition, mode, facts_here())) if mode != "scratch" else None
        if made is not None:
            return made
        folder = folders / f"{definition.name}-{secrets.token_hex(4)}"
        call = (build_there, root, definition.path, arguments[definition.path], mode)
        with one_at_a_time:
            job = submitted(folder, f"image-{definition.name}", recipe.cluster, recipe.cluster.rollout, *call)
        row.say("queued", f"job {job.job_id}")
        result = awaited(job, lambda state: row.say(_STATES.get(state, state.lower()), f"job {job.job_id}"))
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(result, str):
            raise ProrlError(f"job {job.job_id}: {result}")
        return result

    return build_one


def _forget_old(folders: Path) -> None:
    """A job that ended without a word, or that nobody waited for, leaves a folder with its log."""
    for folder in folders.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > LOGS_S:
                shutil.rmtree(folder, ignore_errors=True)


def build_there(root: Path, path: Path, arguments: dict[str, str], mode: Mode) -> Image | str:
    """What such a job does: the image, or in words why there is none."""
    from prorl_cli.images import Store, read_definition

    try:
        return Store(root).build(read_definition(path, arguments), mode)
    except ProrlError as error:
        return str(error)


def _all(definitions: Sequence[Definition], build_one: Build, rows: Rows, asked: Asked) -> int:
    pool = ThreadPoolExecutor(max_workers=asked.jobs or (len(definitions) if asked.slurm else 1))
    try:
        work = [pool.submit(_one, definition, build_one, rows) for definition in definitions]
        while wait(work, timeout=0.2).not_done:
            rows.tick()
    except KeyboardInterrupt:
        rows.close()
        jobs_too = "; jobs that were submitted go on" if asked.slurm else ""
        print(f"prorl: stopped: the same command goes on with what is not built yet{jobs_too}", file=sys.stderr)
        os._exit(Unfinished.exit_code)  # whoever builds ends with this process, and a thread cannot be told to
    pool.shutdown()
    return 0 if all(future.result() for future in work) else 1


def _one(definition: Definition, build_one: Build, rows: Rows) -> bool:
    row = rows[definition.name]
    try:
        row.done(build_one(definition, row))
    except (ProrlError, OSError) as error:
        row.failed(str(error))
        return False
    return True
