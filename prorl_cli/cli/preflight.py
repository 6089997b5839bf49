"""Everything about a recipe that can be found wrong before anything is made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prorl_cli.cli.pinning import absent_here, pinned, with_image
from prorl_cli.coordinator.sampler import split
from prorl_cli.errors import RecipeError, UserError
from prorl_cli.recipe import Recipe, counted, load_recipe
from prorl_cli.rundir import find_recipe

if TYPE_CHECKING:
    from prorl_cli.tasks import Item

MAX_NAMED = 3
"""Tasks that are named for one reason."""
MAX_REASONS = 10
"""Reasons that are told of one source."""


def validate(file: Path, overrides: tuple[str, ...]) -> str:
    """A line that says the recipe is good; `RecipeError` with every mistake otherwise."""
    recipe = checked(find_recipe(file), overrides)
    return f"{file}: ok ({len(recipe.tasks)} task sources, {recipe.learner.steps} steps)"


def checked(
    file: Path, overrides: tuple[str, ...], further: Callable[[Recipe], Sequence[str]] = lambda _: ()
) -> Recipe:  # fmt: skip
    """The recipe, with all that it names proven usable, and nothing `further` found; all mistakes at once."""
    recipe = load_recipe(file, overrides)
    sys.path.append(str(file.absolute().parent))  # a handler may lie beside its recipe
    shares = split(recipe.eval.n, [spec.weight for spec in recipe.tasks])
    problems = _model_problems(recipe)
    for number, share in enumerate(shares):
        problems += _task_problems(recipe, number, share)
    try:
        recipe = pinned(recipe, file.parent)
    except RecipeError as error:
        problems.append(str(error))
        recipe = with_image(recipe, "")
    if recipe.cluster.executor == "local":
        problems += absent_here(recipe)
    problems += further(recipe)
    if problems:
        raise RecipeError(f"{file}: {counted(problems)}\n" + "\n".join(f"  {text}" for text in problems))
    return recipe


def _model_problems(recipe: Recipe) -> list[str]:
    from prorl_cli.warmstart import check_model

    return [f"model: {text}" for text in check_model(recipe.model)]


def _task_problems(recipe: Recipe, number: int, held_out: int) -> list[str]:
    try:
        from prorl_cli.tasks import load_handler, open_source

        handler = load_handler(recipe.tasks[number])
        source = open_source(recipe.tasks[number], recipe.seed)
        source.item(0, held_out=False)
    except UserError as error:
        return [f"tasks.{number}: {error}"]
    except ImportError as error:
        return [f"tasks.{number}: cannot be checked here ({error}): pip install 'prorl[train]'"]
    unfit = partial(handler.unfit, eval_s=recipe.rollout.eval.timeout, tools=recipe.agent.tools)
    problems = _unfit_rows(number, source.rows, unfit)
    if source.held_out_size is not None and source.held_out_size < held_out:
        problems.append(
            f"tasks.{number}: eval.n asks for {held_out} held-out tasks of {recipe.tasks[number].source}, "
            f"which has {source.held_out_size}: lower eval.n or give it `options: {{held_out: FILE}}`"
        )
    return problems


def _unfit_rows(number: int, rows: Sequence[Item], unfit: Callable[[Item], str]) -> list[str]:
    """Each reason once, with the tasks that it is one for."""
    found: dict[str, list[str]] = {}
    for item in rows:
        if why := unfit(item):
            found.setdefault(why, []).append(item.title)
    told = [f"tasks.{number}: {_some(titles)}: {why}" for why, titles in found.items()]
    more = f"tasks.{number}: and {len(told) - MAX_REASONS} more reasons like these"
    return [*told[:MAX_REASONS], *([more] if len(told) > MAX_REASONS else [])]


def _some(titles: Sequence[str]) -> str:
    more = f" and {len(titles) - MAX_NAMED} more" if len(titles) > MAX_NAMED else ""
    return ", ".join(titles[:MAX_NAMED]) + more
