"""A Dockerfile's text as instructions, with the line each begins on: continuations joined, comments gone.

Refuses what changes how the rest is read: another escape character, another frontend, here-documents. Pure.
Called by `stages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*(syntax|escape)\s*=\s*(\S+)\s*$", re.IGNORECASE)
_CONTINUED = re.compile(r"(^|[^\\])\\[ \t]*$")
_INSTRUCTION = re.compile(r"([A-Za-z]+)(?:\s+|$)(.*)", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"(?:^|\s)\d*<<-?\s*[^\s<]")
_OFFICIAL = re.compile(r"(docker\.io/)?docker/dockerfile(:1[\w.-]*)?")


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something that has no translation."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """`name` in capitals; `rest` is one line."""

    line: int
    name: str
    rest: str


def read(text: str) -> tuple[list[Instruction], list[Problem]]:
    """Every instruction, and what stands between them and being read as Docker would."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    problems = list(_directives(lines))
    found = []
    for number, joined in _logical(lines):
        match = _INSTRUCTION.fullmatch(joined)
        if match is None:
            problems.append(Problem(number, f"{joined.split()[0]!r} is no instruction"))
        elif match[1].upper() in ("RUN", "COPY", "ADD") and _HERE_DOCUMENT.search(match[2]):
            # What follows is its text, not instructions: nothing more can be read.
            problems.append(Problem(number, f"{match[1].upper()} <<: here-documents; write a file and COPY it"))
            break
        else:
            found.append(Instruction(number, match[1].upper(), match[2].strip()))
    return found, problems


def _directives(lines: list[str]) -> Iterator[Problem]:
    """They stand before everything else, one a line."""
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if not match:
            return
        if match[1].lower() == "escape" and match[2] != "\\":
            yield Problem(number, f"# escape={match[2]}: only the backslash escapes here")
        if match[1].lower() == "syntax" and not _OFFICIAL.fullmatch(match[2]):
            yield Problem(number, f"# syntax={match[2]}: another language than Docker's own")


def _logical(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Lines joined as Docker does: comments and empty lines inside a continued one are not there."""
    began, parts = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        began = began if parts else number
        if _CONTINUED.search(line):
            parts.append(line.rstrip(" \t")[:-1])
            continue
        yield began, "".join([*parts, line]).strip()
        parts = []
    if parts and "".join(parts).strip():
        yield began, "".join(parts).strip()
