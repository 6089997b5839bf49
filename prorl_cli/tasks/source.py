"""Where tasks come from: `item(index, held_out)` is a pure function of the task's spec, the run's seed and the index.

Train and held-out cannot overlap by construction: a question's own text says on which side it lies (`is_held_out`),
whatever generator, seed or file it came from. Sources skip, deterministically, what lies on the other side.
Called by handlers, by the coordinator's checks and by the warm start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from textwrap import shorten
from typing import Any, Protocol, TypeVar

from prorl_cli.errors import UserError

HELD_OUT_ONE_IN = 5
"""One question in five is held out: few enough to leave small families something to train on."""

MAX_CANDIDATES = 2048
"""Draws for one item before a source is called too small to be split: odds of 1e-190 for a rich one."""


T = TypeVar("T")

Options = dict[str, Any]
"""`options` of a recipe's task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One task. `payload` holds what its verifier needs (`verifier` and its arguments) and, where the source knows
    it, `expression`: the calculator expression whose value is the answer (else None)."""

    question: str
    answer: str
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What people find it by: its id, or how its question begins."""
        return str(self.payload.get("id") or repr(shorten(self.question, 60, placeholder="…")))


class Source(Protocol):
    """A stream of tasks."""

    @property
    def held_out_size(self) -> int | None:
        """How many different held-out items there are; None = as many as asked for."""

    @property
    def rows(self) -> Sequence[Item]:
        """Every item of a file; of what is drawn, none."""

    def item(self, index: int, held_out: bool) -> Item:
        """Item number `index` (any non-negative int) of the train or the held-out stream."""


def digest(*parts: object) -> int:
    """A 63-bit number that depends on every part, the same on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1


def is_held_out(question: str) -> bool:
    """On which side of the split a question lies."""
    return digest("held-out", normalized(question)) % HELD_OUT_ONE_IN == 0


def normalized(question: str) -> str:
    """Two questions are the same if this is: white space at the ends and its amount between words do not count."""
    return " ".join(question.split())


def first_on_side(candidates: Iterator[T], question: Callable[[T], str], held_out: bool, name: str) -> T:
    """The first candidate whose question is on the wanted side; `UserError` when none of the first
    `MAX_CANDIDATES` is."""
    for candidate in islice(candidates, MAX_CANDIDATES):
        if is_held_out(question(candidate)) == held_out:
            return candidate
    side = "held-out" if held_out else "train"
    raise UserError(
        f"{name} makes too few different questions to keep train and held-out apart (no {side} question in "
        f"{MAX_CANDIDATES} draws): widen its options"
    )
