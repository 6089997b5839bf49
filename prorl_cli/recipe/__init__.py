"""Schema of the YAML a researcher writes: unknown keys refused, every mistake reported at once."""

from prorl_cli.recipe.load import counted, is_image_name, load_recipe, with_overrides
from prorl_cli.recipe.schema import ANYTHING, Recipe, Sandbox, TaskSpec
from prorl_cli.recipe.starter import starter_text

__all__ = [
    "ANYTHING",
    "Recipe",
    "Sandbox",
    "TaskSpec",
    "counted",
    "is_image_name",
    "load_recipe",
    "starter_text",
    "with_overrides",
]
