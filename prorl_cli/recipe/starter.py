"""The commented recipe that `prorl init` writes: every key, its meaning and its default, straight from the schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from prorl_cli.recipe.schema import Recipe

_EXAMPLE = """\
# A recipe of prorl. What is commented out shows the default; delete what you do not need.
# Check it with `prorl validate FILE`, start it with `prorl launch FILE`.

# {name}
name: my-run
# {model}
model: builtin:tiny
# {tasks}
tasks:
  - {{domain: math, source: "reasoning_gym:chain_sum", options: {{min_terms: 2, max_terms: 3}}}}
"""

_CHOSEN = {
    "agent.renderer": "tiny", "agent.max_tokens": "192", "learner.steps": "50", "learner.lr": "2.0e-4", "eval.n": "256",
}  # fmt: skip
"""What the tiny model of the example needs beyond the defaults, which suit models of billions of parameters."""


def starter_text() -> str:
    """A recipe that loads as it is."""
    fields = Recipe.model_fields
    text = _EXAMPLE.format(**{name: fields[name].description for name in ("name", "model", "tasks")})
    rest = [name for name in fields if name not in ("name", "model", "tasks")]
    return text + "".join(_entry(name, Recipe, "") for name in rest)


def _entry(name: str, model: type[BaseModel], path: str) -> str:
    field, indent = model.model_fields[name], "  " * path.count(".")
    annotation, full = field.annotation, f"{path}{name}"
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        value = _CHOSEN.get(full)
        about = " ".join((field.description or "").split())
        return f"{'' if value else '# '}{indent}{name}: {value or _default(name, model)}  # {about}\n"
    about = (annotation.__doc__ or "").strip().splitlines()[0]
    body = "".join(_entry(key, annotation, f"{full}.") for key in annotation.model_fields)
    mark = "" if any(chosen.startswith(f"{full}.") for chosen in _CHOSEN) else "# "
    return f"\n# {about}\n{mark}{name}:\n{body}" if not path else f"{mark}{indent}{name}:  # {about}\n{body}"


def _default(name: str, model: type[BaseModel]) -> str:
    if model is Recipe:
        return json.dumps(model.model_fields[name].default)
    value: Any = json.loads(model.model_construct().model_dump_json(include={name}))[name]
    return value if isinstance(value, str) and value else json.dumps(value)
