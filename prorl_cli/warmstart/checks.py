"""What can be found wrong with a recipe's model without torch. Called by `validate`, `launch` and the room's main."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prorl_cli.recipe.schema import TINY


def check_model(model: str) -> list[str]:
    """Every problem in words; empty for a model that can be trained (and for the built-in one)."""
    if model == TINY:
        return []
    folder = Path(model)
    if not folder.is_dir():
        return [f"there is no folder {model}: give the folder of a Hugging Face model, or {TINY}"]
    return []
