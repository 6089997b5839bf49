"""What `resume --set` changes, in words; what it may not change is refused. Pure."""

from __future__ import annotations

import json

from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe

MUTABLE = ("learner.", "eval.", "checkpoint.", "cluster.", "sandbox.", "engine.slots", "engine.threads",
           "rollout.max_staleness", "rollout.max_resample", "rollout.deadline", "rollout.retries",
           "rollout.init.", "rollout.run.", "rollout.eval.")  # fmt: skip
"""What `resume --set` may change: everything that does not change which episodes the run already asked for."""


def differences(before: Recipe, after: Recipe, step: int) -> list[str]:
    """`key: old → new` lines; `UserError` when the run, at `step`, cannot take the change."""
    old, new = _flat(json.loads(before.model_dump_json())), _flat(json.loads(after.model_dump_json()))
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    refused = [key for key in changed if not key.startswith(MUTABLE)]
    if refused:
        raise UserError(
            f"a run cannot change {', '.join(refused)}: what it already asked for depends on it. "
            f"Start a new run, or change only {', '.join(prefix.rstrip('.') for prefix in MUTABLE)}"
        )
    if after.learner.steps < step:
        raise UserError(f"learner.steps is {after.learner.steps}, but the run has already done {step} steps")
    return [f"{key}: {old.get(key)} → {new.get(key)}" for key in changed]


def _flat(data: object, path: str = "") -> dict[str, object]:
    if isinstance(data, dict):
        return {key: value for name, item in data.items() for key, value in _flat(item, f"{path}.{name}").items()}
    return {path.removeprefix("."): data}
