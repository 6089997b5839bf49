"""Words and variables of a Dockerfile, as Docker reads them: quotes, backslashes, `$NAME`, `${NAME:-word}`.

Refuses a variable whose value the file does not say, for the base image's own is not known here. Pure.
Called by `stages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

INHERITED = "\0"
"""In an expanded text: the PATH of the base image, the one value that may stay unknown."""

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^{}$]*))?\})")


class Untranslatable(Exception):
    """Says what of one instruction has no translation."""


def expand(text: str, known: Mapping[str, str]) -> str:
    """`text` without its quotes, its variables replaced. Raises `Untranslatable`."""
    return "".join(_pieces(text, known))


def split(text: str) -> list[str]:
    """At spaces outside quotes; quotes and backslashes stay. Raises `Untranslatable`."""
    words, word, quote, position = [], "", "", 0
    while position < len(text):
        letter = text[position]
        if letter == "\\" and quote != "'":
            letter = text[position : position + 2]
        elif letter == quote:
            quote = ""
            word += letter
            position += 1
            continue
        elif not quote and letter in "\"'":
            quote = letter
        if letter.isspace() and not quote:
            words.append(word)
            word = ""
        else:
            word += letter
        position += len(letter)
    if quote:
        raise Untranslatable(f"a quote {quote} is not closed")
    return [word for word in [*words, word] if word]


def _pieces(text: str, known: Mapping[str, str]) -> Iterator[str]:
    quote, position = "", 0
    while position < len(text):
        letter = text[position]
        if letter == quote:
            quote = ""
        elif letter in "\"'" and not quote:
            quote = letter
        elif letter == "\\" and quote != "'" and position + 1 < len(text):
            position += 1
            # Inside double quotes a backslash escapes only what would mean something there.
            yield letter * (quote == '"' and text[position] not in '"$\\') + text[position]
        elif letter == "$" and quote != "'":
            value, position = _value(text, position, known)
            yield value
            continue
        else:
            yield letter
        position += 1
    if quote:
        raise Untranslatable(f"a quote {quote} is not closed")


def _value(text: str, position: int, known: Mapping[str, str]) -> tuple[str, int]:
    match = _VARIABLE.match(text, position)
    if match is None:
        raise Untranslatable(f"{text[position:].split()[0]!r} is no variable that is understood here")
    name = match[1] or match[2]
    if name not in known:
        raise Untranslatable(f"${name} has no value in this file: write it out, or give `ARG {name}=VALUE` before")
    if match[3] == "+":
        return (match[4] if known[name] else ""), match.end()
    return known[name] or match[4] or "", match.end()
