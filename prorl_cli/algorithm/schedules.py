"""What changes from step to step by plan: the learning rate. Called by the coordinator, which writes it down."""

from __future__ import annotations

from prorl_cli.recipe import Recipe


def schedule(recipe: Recipe, position: int) -> float:
    """Learning rate of step `position` (from 1): linear warm-up over `learner.lr_warmup` steps, then constant."""
    warmup = recipe.learner.lr_warmup
    return recipe.learner.lr * (min(1.0, position / warmup) if warmup else 1.0)
