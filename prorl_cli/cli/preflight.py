"""Everything about a recipe that can be found wrong before anything is made."""

from __future__ import annotations

from pathlib import Path

from prorl_cli.errors import RecipeError, UserError
from prorl_cli.recipe import Recipe, load_recipe


def validate(file: Path, overrides: tuple[str, ...]) -> str:
    """A line that says the recipe is good; `RecipeError` with every mistake otherwise."""
    recipe = checked(file, overrides)
    return f"{file}: ok ({len(recipe.tasks)} task sources, {recipe.learner.steps} steps)"


def checked(file: Path, overrides: tuple[str, ...]) -> Recipe:
    """The recipe, its model and its task sources proven usable."""
    recipe = load_recipe(file, overrides)
    problems = _model_problems(recipe) + [text for i in range(len(recipe.tasks)) for text in _task_problems(recipe, i)]
    if problems:
        raise RecipeError(f"{file}: {len(problems)} found\n" + "\n".join(f"  {text}" for text in problems))
    return recipe


def _model_problems(recipe: Recipe) -> list[str]:
    from prorl_cli.warmstart import check_model

    return [f"model: {text}" for text in check_model(recipe.model)]


def _task_problems(recipe: Recipe, number: int) -> list[str]:
    from prorl_cli.tasks import load_handler, open_source

    try:
        load_handler(recipe.tasks[number])
        open_source(recipe.tasks[number], recipe.seed).item(0, held_out=False)
    except UserError as error:
        return [f"tasks.{number}: {error}"]
    return []
