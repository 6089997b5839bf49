"""`open_source`: from a recipe's `source` to the object that makes its tasks."""

from __future__ import annotations

from prorl_cli.errors import UserError
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks.procedural import FAMILIES, Purchase
from prorl_cli.tasks.reasoning import ReasoningGym
from prorl_cli.tasks.source import Source


def open_source(spec: TaskSpec, seed: int) -> Source:
    """The source that `spec.source` names, for a run seeded `seed`; `UserError` says why there is none."""
    kind, _, name = spec.source.partition(":")
    if kind == "reasoning_gym":
        return ReasoningGym(name, spec.options, seed)
    if kind == "procedural":
        if name not in FAMILIES:
            raise UserError(f"there is no procedural:{name}: there is {', '.join(f'procedural:{f}' for f in FAMILIES)}")
        return Purchase(spec.options, seed)
    raise UserError(f"no source {spec.source!r}: reasoning_gym:NAME, procedural:NAME or the path of a JSONL file")
