"""Durations and sizes with units, as recipes write them (`10m`, `24h`, `8GiB`)."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _parse(value: Any, units: dict[str, int], example: str) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", value)
        if match and match[2] in units:
            return float(match[1]) * units[match[2]]
    raise ValueError(f"expected a number with a unit ({', '.join(units)}), such as {example!r}; got {value!r}")


def parse_duration(value: Any) -> float:
    """Seconds of `"90s"`, `"10m"`, `"1.5h"`, `"2d"`."""
    return _parse(value, SECONDS, "10m")


def parse_size(value: Any) -> int:
    """Bytes of `"512MiB"`, `"8GiB"`."""
    return int(_parse(value, BYTES, "8GiB"))


def format_duration(seconds: float) -> str:
    """The shortest exact spelling: 600 → `10m`, 5400 → `90m`, 1.5 → `1.5s`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % SECONDS[unit] == 0:
            return f"{int(seconds // SECONDS[unit])}{unit}"
    return f"{seconds:g}s"


def format_size(size: int) -> str:
    """The shortest exact spelling: 2**30 → `1GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B"


Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
"""Seconds, written with a unit."""

Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str)]
"""Bytes, written with a unit."""
