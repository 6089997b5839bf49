"""From a recipe file and `--set` overrides to a `Recipe`, or to one report of every mistake."""

from __future__ import annotations

import difflib
import itertools
import json
import re
import types
from collections.abc import Sized
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from prorl_cli.errors import RecipeError
from prorl_cli.recipe.schema import Recipe
from prorl_cli.recipe.text import Lines, Problem, parse_scalar, parse_yaml
from prorl_cli.recipe.text import Path as KeyPath

_BIASED = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def load_recipe(file: Path, overrides: tuple[str, ...] = ()) -> Recipe:
    """The recipe in `file` with `a.b=value` overrides applied. `RecipeError` lists all mistakes with their lines."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"no such recipe: {file} (`prorl init` writes one to start from)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe {file}: {error}") from error
    data, lines, problems = parse_yaml(text)
    if data is None and problems:
        raise RecipeError(_report(str(file), lines, problems))
    if not isinstance(data, dict):
        raise RecipeError(f"{file}: a recipe is a mapping of keys to values (`prorl init` writes one to start from)")
    problems += _override(data, lines, overrides)
    _anchor_paths(data, file.absolute().parent)
    return _validate(str(file), data, lines, problems)


def with_overrides(recipe: Recipe, overrides: tuple[str, ...]) -> Recipe:
    """A resolved recipe with overrides applied, as `prorl resume --set` does."""
    data = json.loads(recipe.model_dump_json())
    problems = _override(data, {}, overrides)
    return _validate("the run's recipe", data, {}, problems)


def _validate(name: str, data: dict[str, Any], lines: Lines, problems: list[Problem]) -> Recipe:
    recipe = None
    try:
        # JSON mode: strict about types, yet a YAML list may become a tuple and 1 a float.
        recipe = Recipe.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems += [_problem(dict(found)) for found in error.errors() if not _follows_from_another(found, error)]
    except (TypeError, ValueError) as error:
        problems.append(Problem(path=(), text=str(error)))
    if problems or recipe is None:
        raise RecipeError(_report(name, lines, problems))
    return recipe


def _override(data: dict[str, Any], lines: Lines, overrides: tuple[str, ...]) -> list[Problem]:
    problems = []
    for override in overrides:
        key, equals, value = override.partition("=")
        path = tuple(int(part) if part.isdigit() else part for part in key.strip().split("."))
        try:
            if not equals or not key.strip():
                raise ValueError("expected key.key=value")
            _put(data, path, parse_scalar(value))
        except (ValueError, LookupError, TypeError) as error:
            problems.append(Problem(path=(), text=f"--set {override!r}: {error}"))
        for known in [known for known in lines if known[: len(path)] == path]:
            lines[known] = 0
    return problems


def _put(data: Any, path: KeyPath, value: Any) -> None:
    for part, following in itertools.pairwise(path):
        if isinstance(data, dict):
            data = data.setdefault(part, [] if isinstance(following, int) else {})
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            raise LookupError(f"there is no {part!r} to go into")
    last = path[-1]
    if isinstance(data, dict):
        data[str(last)] = value
    elif isinstance(data, list) and isinstance(last, int) and last < len(data):
        data[last] = value
    else:
        raise LookupError(f"there is no {last!r} to set")


def is_image_name(image: str) -> bool:
    """Whether `sandbox.image` names a definition, whose image the cache knows; else it is a path."""
    return bool(_IMAGE_NAME.fullmatch(image)) and not image.endswith(".sif")


def _anchor_paths(data: dict[str, Any], folder: Path) -> None:
    """Relative paths in a recipe are relative to it, not to where `prorl` was called."""
    model = data.get("model")
    if isinstance(model, str) and not model.startswith("builtin:"):
        data["model"] = str(folder / Path(model).expanduser())
    sandbox = data.get("sandbox")
    image = sandbox.get("image") if isinstance(sandbox, dict) else None
    if isinstance(sandbox, dict) and isinstance(image, str) and image and not is_image_name(image):
        sandbox["image"] = str(folder / Path(image).expanduser())
    tasks = data.get("tasks")
    for task in tasks if isinstance(tasks, list) else ():
        source = task.get("source") if isinstance(task, dict) else None
        if isinstance(source, str) and ":" not in source:
            task["source"] = str(folder / Path(source).expanduser())


def _problem(found: dict[str, Any]) -> Problem:
    path = tuple(found["loc"])
    kind, message = found["type"], str(found["msg"])
    if kind == "extra_forbidden":
        message = _unknown_key(path)
    elif kind == "missing":
        message = "is required"
    else:
        message = message.removeprefix("Value error, ")
        given = found.get("input")
        if isinstance(given, str | int | float | bool) and repr(given) not in message:
            message = f"{message[0].lower()}{message[1:]}, got {given!r}"
    return Problem(path=path, text=message)


def _follows_from_another(found: Any, error: ValidationError) -> bool:
    """A list with a bad item is also reported as too short."""
    nested = any(other["loc"][: len(found["loc"])] == found["loc"] != other["loc"] for other in error.errors())
    return bool(found["type"] == "too_short" and nested)


def _unknown_key(path: KeyPath) -> str:
    if path[-1] in _BIASED:
        return "refused: it samples from another distribution than the one trained, which biases the ratio"
    valid = sorted(_fields_at(path[:-1]))
    close = difflib.get_close_matches(str(path[-1]), valid, n=1, cutoff=0.5)
    hint = f", did you mean {close[0]!r}?" if close else "."
    return f"unknown key{hint} Valid keys: {', '.join(valid)}"


def _fields_at(path: KeyPath) -> dict[str, Any]:
    model: Any = Recipe
    for part in path:
        if isinstance(part, int):
            continue
        model = _model_in(model.model_fields[part].annotation)
    return dict(model.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (tuple, list, types.UnionType):
        return next(found for found in map(_model_in, get_args(annotation)) if found is not None)
    return None


def _report(name: str, lines: Lines, problems: list[Problem]) -> str:
    ordered = sorted(problems, key=lambda problem: _line(problem, lines))
    rows = [_row(name, problem, lines) for problem in ordered]
    return f"{name}: {counted(ordered)}\n" + "\n".join(rows)


def counted(problems: Sized) -> str:
    """`1 mistake`, `3 mistakes`."""
    return "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"


def _row(name: str, problem: Problem, lines: Lines) -> str:
    line = _line(problem, lines)
    where = f"{name}:{line}: " if line else f"{name}: "
    key = ".".join(map(str, problem.path))
    return f"  {where}{key + ': ' if key else ''}{problem.text}"


def _line(problem: Problem, lines: Lines) -> int:
    if problem.line:
        return problem.line
    for end in range(len(problem.path), 0, -1):
        if problem.path[:end] in lines:
            return lines[problem.path[:end]]
    return 0
