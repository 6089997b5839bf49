"""A copy of the user's own handler code in the run directory, so that a resume runs what the launch ran."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir


def snapshot_code(run: RunDir, recipe: Recipe) -> None:
    """Copy the top-level package or module of every `handler:` that is not part of an installed distribution."""
    for name in {spec.handler.split(":")[0].split(".")[0] for spec in recipe.tasks if spec.handler}:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None or "site-packages" in Path(found.origin).parts:
            continue
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, run.code / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(origin, run.code / origin.name)
