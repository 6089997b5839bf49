"""`reasoning_gym:NAME`: tasks and verifier of any data set of the reasoning-gym package; options are its own.

Item i of a reasoning-gym set with seed s is made from seed s + i, so sets with nearby seeds share almost all items.
Here every item draws from a window of seeds of its own, placed by a hash of (run seed, side, index).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.tasks.source import Item, digest, first_on_side

WINDOW = 64
"""Candidates of one window; small, as some sets allocate for their whole size."""

_PLAIN_ARITHMETIC = re.compile(r"[0-9+\-*/(). ]+")


class ReasoningGym:
    """One reasoning-gym data set. `UserError` for an unknown name or options it refuses."""

    held_out_size = None

    def __init__(self, name: str, options: dict[str, Any], seed: int) -> None:
        self._name, self._options, self._seed = name, dict(options), seed
        make_dataset(name, self._options, 0)

    def item(self, index: int, held_out: bool) -> Item:
        """See `Source.item`."""
        return first_on_side(self._candidates(index, held_out), held_out, f"reasoning_gym:{self._name}")

    def _candidates(self, index: int, held_out: bool) -> Iterator[Item]:
        side, ordinal = ("held-out" if held_out else "train"), 0
        while True:
            seed = digest("reasoning_gym", self._seed, side, index, ordinal) % 2**31
            dataset = make_dataset(self._name, self._options, seed)
            for position in range(WINDOW):
                yield self._item(dataset[position])
            ordinal += 1

    def _item(self, entry: dict[str, Any]) -> Item:
        expression = entry.get("metadata", {}).get("expression")
        plain = isinstance(expression, str) and _PLAIN_ARITHMETIC.fullmatch(expression)
        payload = {
            "verifier": "reasoning_gym",
            "dataset": self._name,
            "options": self._options,
            "entry": entry,
            "expression": expression if plain else None,
        }
        return Item(question=str(entry["question"]), answer=str(entry["answer"]), payload=payload)


def make_dataset(name: str, options: dict[str, Any], seed: int) -> Any:
    """The package's own data set object; `UserError` says what is wrong with the name or the options."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise UserError(f"reasoning_gym has no data set {name!r}: it has {', '.join(sorted(DATASETS))}")
    reserved = {"seed", "size"} & options.keys()
    if reserved:
        raise UserError(f"reasoning_gym:{name}: options may not set {', '.join(sorted(reserved))}: prorl draws them")
    try:
        return create_dataset(name, seed=seed, size=WINDOW, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"reasoning_gym:{name} refuses the options {options}: {error}") from error
