"""Slurm's spelling of times (both ways), sizes and GPUs. Pure.

What Slurm prints for "no number" (`Partition_Limit`, `INVALID`, `N/A` …) is None here, and UNLIMITED is infinity.
"""

from __future__ import annotations

import math
import re

from prorl_cli.recipe.schema import Cluster, Component

_UNITS = {"M": 2**20, "G": 2**30}

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<clock>\d+(?::\d+){0,2})(?:\.\d+)?")


def time_text(seconds: float) -> str:
    """`1-02:03:04`: every part written out, since Slurm reads a bare number as minutes."""
    whole = math.ceil(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours // 24}-{hours % 24:02d}:{rest // 60:02d}:{rest % 60:02d}"


def parse_time(text: str) -> float | None:
    """Seconds of a limit or a duration as Slurm prints it (`10`, `10:00`, `1:00:00`, `1-0`, `UNLIMITED`)."""
    text = text.strip()
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    parts = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return int(match["days"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
    return hours * 3600 + minutes * 60 + seconds


def memory_text(size: int) -> str:
    """`64G`: whole numbers only, rounded up to a KiB where there is a rest."""
    for unit in ("G", "M"):
        if size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return f"{math.ceil(size / 1024)}K"


def gpu_directive(cluster: Cluster, asked: Component) -> tuple[str, str]:
    """Option and value that ask for a node's GPUs the way this site wants it."""
    typed = ":".join(part for part in (asked.gpu_type, str(asked.gpus)) if part)
    return ("gpus-per-node", typed) if cluster.gpu_option == "gpus-per-node" else ("gres", f"gpu:{typed}")
