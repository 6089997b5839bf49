"""Slurm's host lists (`gpu[01-03,07],login1`) as names, without asking Slurm. Pure; refuses what it cannot read."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

MOST = 65536
"""Hosts of one entry, as in Slurm itself; more is a typing error, and would fill the memory."""

_PLAIN = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand(text: str) -> list[str]:
    """Every host, in order, repetitions kept; `ValueError` for anything that is not a host list."""
    return [host for entry in _entries(text) for host in _hosts(entry, text)] if text else []


def _entries(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ValueError(f"unbalanced brackets in the host list {text!r}")
        if character == "," and not depth:
            yield text[start:at]
            start = at + 1
    if depth:
        raise ValueError(f"unbalanced brackets in the host list {text!r}")
    yield text[start:]


def _hosts(entry: str, text: str) -> Iterator[str]:
    plain, bracketed = re.split(r"\[[^\]]*\]", entry), re.findall(r"\[([^\]]*)\]", entry)
    if not entry or not all(_PLAIN.fullmatch(part) for part in plain):
        raise ValueError(f"{entry!r} is no host name, in the host list {text!r}")
    choices = [[plain[0]]]
    for ranges, after in zip(bracketed, plain[1:], strict=True):
        choices += [_numbers(ranges, text), [after]]
    if math.prod(map(len, choices)) > MOST:
        raise ValueError(f"{entry!r} is more than {MOST} hosts, in the host list {text!r}")
    return ("".join(parts) for parts in itertools.product(*choices))


def _numbers(ranges: str, text: str) -> list[str]:
    """`1-3,07` → 1 2 3 07; the first number of a range gives the width."""
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"[{ranges}] holds no range of numbers, in the host list {text!r}")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MOST:
            raise ValueError(f"{part} is no range of at most {MOST} numbers, in the host list {text!r}")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
