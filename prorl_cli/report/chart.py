"""A curve drawn with characters. Pure."""

from __future__ import annotations

import itertools

BLOCKS = " ▁▂▃▄▅▆▇█"


def shrink(values: list[float], width: int) -> list[float]:
    """At most `width` values: means of neighbouring ones."""
    if len(values) <= width:
        return values
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def draw(values: list[float], width: int = 60, height: int = 8) -> list[str]:
    """Lines of a bar chart with its scale on the left; empty for no values."""
    if not values:
        return []
    bars = shrink(values, width)
    low, high = min(0.0, *bars), max(*bars, 1e-9) if len(bars) > 1 else max(bars[0], 1e-9)
    eighths = [round((value - low) / (high - low) * height * 8) for value in bars]
    lines = []
    for row in range(height - 1, -1, -1):
        scale = low + (high - low) * (row + 1) / height
        line = "".join(BLOCKS[min(8, max(0, level - 8 * row))] for level in eighths)
        lines.append(f"{scale:6.2f} ┤{line}")
    return [*lines, f"       └{'─' * len(bars)}"]


def sparkline(values: list[float], width: int = 40) -> str:
    """One line of blocks."""
    bars = shrink(values, width)
    low, high = min(bars, default=0.0), max(bars, default=1.0)
    return "".join(BLOCKS[1 + round(7 * (value - low) / ((high - low) or 1.0))] for value in bars)
