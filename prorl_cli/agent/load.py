"""`load_renderer`: from a recipe's `agent.renderer` to the object that speaks it."""

from __future__ import annotations

from pathlib import Path

from prorl_cli.agent.hermes import HermesRenderer
from prorl_cli.agent.render import Renderer
from prorl_cli.agent.tiny import TinyRenderer


def load_renderer(kind: str, model_folder: Path) -> Renderer:
    """`tiny` (needs nothing from the folder) or `hermes` (reads the tokenizer in `model_folder`); `UserError` when
    the folder cannot serve it."""
    return TinyRenderer() if kind == "tiny" else HermesRenderer(model_folder)
