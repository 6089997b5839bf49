"""YAML text → plain data with the line of every key. YAML 1.2 scalars only: `off` is text, `24:00:00` is text.

Duplicate keys, anchors' surprises and non-string keys are refused with their line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]
Lines = dict[Path, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake: where it is (path in the recipe) and what is wrong."""

    path: Path
    text: str
    line: int = 0


class _Yaml12(yaml.SafeLoader):
    """SafeLoader without YAML 1.1's sexagesimals, octals and yes/no/on/off booleans, and without aliases: aliases of
    aliases grow without bound."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, unless it is an alias."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not supported: write it out", mark)
        return super().compose_node(parent, index)


_Yaml12.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
):
    _Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [*_first])
_Yaml12.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^$"), [""])
_Yaml12.add_constructor(
    "tag:yaml.org,2002:float",
    lambda loader, node: float(str(loader.construct_scalar(node))),  # type: ignore[arg-type]
)


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Yaml12.add_constructor("tag:yaml.org,2002:int", _int)


def parse_yaml(text: str) -> tuple[Any, Lines, list[Problem]]:
    """Data, the 1-based line of every path, and what is wrong with the text itself."""
    loader = _Yaml12(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}, []
        lines: Lines = {}
        problems: list[Problem] = []
        data = _build(loader, root, (), lines, problems)
        return data, lines, problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.context, error.problem) if part)
        return None, {}, [Problem(path=(), text=f"not valid YAML: {words}", line=mark.line + 1 if mark else 0)]
    except yaml.YAMLError as error:
        return None, {}, [Problem(path=(), text=f"not valid YAML: {error}")]
    except RecursionError:
        return None, {}, [Problem(path=(), text="nested too deeply for a recipe")]
    finally:
        loader.dispose()


def parse_scalar(text: str) -> Any:
    """A `--set` value: YAML, so `2` is a number, `[a, b]` a list and `10m` text."""
    data, _, problems = parse_yaml(text)
    if problems:
        raise ValueError(problems[0].text)
    return data


def _build(loader: yaml.SafeLoader, node: yaml.Node, path: Path, lines: Lines, problems: list[Problem]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*path, i), lines, problems) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(loader, node, path, lines, problems)
    return loader.construct_object(node)


def _mapping(
    loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path, lines: Lines, problems: list[Problem]
) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        line = key_node.start_mark.line + 1
        if key in result:
            problems.append(
                Problem(path=(*path, key), text=f"written twice (first on line {lines[(*path, key)]})", line=line)
            )
            continue
        lines[(*path, key)] = line
        result[key] = _build(loader, value_node, (*path, key), lines, problems)
    return result
