"""From a recipe's task to the objects that serve it: `open_source` its items, `load_handler` its stages."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks.handler import Handler
from prorl_cli.tasks.jsonl import Jsonl
from prorl_cli.tasks.procedural import FAMILIES, Purchase
from prorl_cli.tasks.question_answer import QuestionAnswer
from prorl_cli.tasks.reasoning import ReasoningGym
from prorl_cli.tasks.source import Source
from prorl_cli.tasks.tested import Tested

TESTED = ("swe", "code")
"""Domains whose tasks may be graded by tests; any other name is only a label."""


def open_source(spec: TaskSpec, seed: int) -> Source:
    """The source that `spec.source` names, for a run seeded `seed`; `UserError` says why there is none."""
    kind, colon, name = spec.source.partition(":")
    if kind == "reasoning_gym" and colon:
        return ReasoningGym(name, spec.options, seed)
    if kind == "procedural" and colon:
        if name not in FAMILIES:
            raise UserError(f"there is no procedural:{name}: there is {', '.join(f'procedural:{f}' for f in FAMILIES)}")
        return Purchase(spec.options, seed)
    if not colon or Path(spec.source).is_file():
        return Jsonl(Path(spec.source), spec.options, seed)
    raise UserError(f"no source {spec.source!r}: reasoning_gym:NAME, procedural:NAME or the path of a JSONL file")


def load_handler(spec: TaskSpec, code: Path | None = None) -> Handler:
    """The handler of a task: its own `package.module:Class`, found in the folder `code` or on Python's path, or its
    domain's. `UserError` says what is wrong with it."""
    kind = _import(spec.handler, code) if spec.handler else _of_domain(spec.domain)
    try:
        return kind(spec)
    except (TypeError, ValueError) as error:
        raise UserError(f"handler {spec.handler} cannot be made from its task: {error}") from error


def _of_domain(domain: str) -> type[Handler]:
    return Tested if domain in TESTED else QuestionAnswer


def _import(path: str, code: Path | None) -> type[Handler]:
    module, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise UserError(f"handler {path!r} must read package.module:Class")
    if code is not None and str(code) not in sys.path:
        sys.path.insert(0, str(code))
    importlib.invalidate_caches()
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        looked = f"{code} and Python's path" if code else "Python's path"
        raise UserError(f"handler {path}: {module} cannot be imported from {looked}: {error!r}") from error
    if not (inspect.isclass(found) and issubclass(found, Handler)):
        raise UserError(f"handler {path}: {name} is not a class that extends prorl_cli.tasks.Handler")
    if lacking := sorted(found.__abstractmethods__):
        raise UserError(f"handler {path}: {name} lacks {', '.join(f'async def {method}' for method in lacking)}")
    for stage in ("init", "run", "eval"):
        if not inspect.iscoroutinefunction(getattr(found, stage)):
            raise UserError(f"handler {path}: {name}.{stage} must be `async def`")
    return found
