"""Schema of the YAML a researcher writes: unknown keys refused, every mistake reported at once."""

from prorl_cli.recipe.schema import Recipe, TaskSpec

__all__ = ["Recipe", "TaskSpec"]
