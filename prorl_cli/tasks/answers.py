"""What counts as the answer in an episode's final text, and when two plain answers agree.

The answer is the last `<answer>…</answer>`, else the last `\\boxed{…}`, else the whole text; white space at its
ends does not count.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = "\\boxed{"


def extract_answer(text: str) -> str:
    """The answer in a final turn's text; see the module's own page."""
    if tagged := _TAGGED.findall(text):
        return str(tagged[-1]).strip()
    at = text.rfind(_BOXED)
    boxed = _braced(text[at + len(_BOXED) :]) if at >= 0 else None
    return (text if boxed is None else boxed).strip()


def _braced(text: str) -> str | None:
    """`text` up to the brace that closes the one before it; None when none does."""
    depth = 1
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:position]
    return None


def same_text(given: str, wanted: str) -> bool:
    """Equal but for white space."""
    return given.split() == wanted.split()


def as_number(text: str) -> Decimal | None:
    """The value of `1,234.50`, `-7`, `$3`, `50%` (a dollar or percent sign is dropped); None when it is none."""
    try:
        value = Decimal(text.strip().replace(",", "").removeprefix("$").removesuffix("%").strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() else None
