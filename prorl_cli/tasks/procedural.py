"""`procedural:NAME`: prorl's own generated families. `purchase` is short word problems over a shopping list.

    3 pens at 12 and 2 cups at 7. Total?

Its knob is `difficulty`: the number of line items, one number or `[low, high]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from prorl_cli.errors import UserError
from prorl_cli.tasks.source import Item, Options, digest, first_on_side

GOODS = ("pens", "cups", "hats", "nuts", "maps", "keys", "eggs", "figs", "jars", "nets", "bags", "fans")
MAX_DIFFICULTY = len(GOODS)
FAMILIES = ("purchase",)


class Purchase:
    """Word problems with `difficulty` line items, quantities of 2 to 9 and prices of 2 to 20."""

    held_out_size = None
    rows = ()

    def __init__(self, options: Options, seed: int) -> None:
        self._low, self._high = _difficulty(options)
        self._seed = seed

    def item(self, index: int, held_out: bool) -> Item:
        """See `Source.item`."""
        candidates = self._candidates(index, held_out)
        return first_on_side(candidates, lambda item: item.question, held_out, "procedural:purchase")

    def _candidates(self, index: int, held_out: bool) -> Iterator[Item]:
        draw = Random(digest("purchase", self._seed, held_out, index))
        while True:
            yield _purchase(draw, draw.randint(self._low, self._high))


def _purchase(draw: Random, lines: int) -> Item:
    bought = [(draw.randint(2, 9), goods, draw.randint(2, 20)) for goods in draw.sample(GOODS, lines)]
    phrases = [f"{count} {goods} at {price}" for count, goods, price in bought]
    listed = " and ".join(filter(None, (", ".join(phrases[:-1]), phrases[-1])))
    answer = str(sum(count * price for count, _, price in bought))
    expression = " + ".join(f"{count} * {price}" for count, _, price in bought)
    payload = {"verifier": "number", "expression": expression}
    return Item(question=f"{listed}. Total?", answer=answer, payload=payload)


def _difficulty(options: Options) -> tuple[int, int]:
    unknown = options.keys() - {"difficulty"}
    if unknown:
        raise UserError(f"procedural:purchase has no option {', '.join(sorted(unknown))}: it has difficulty")
    given = options.get("difficulty", 2)
    low, high = given if isinstance(given, list | tuple) and len(given) == 2 else (given, given)
    if not (_whole(low) and _whole(high) and 1 <= low <= high <= MAX_DIFFICULTY):
        raise UserError(
            f"procedural:purchase: difficulty is the number of line items, 1 to {MAX_DIFFICULTY}, or [low, high]; "
            f"got {given!r}"
        )
    return low, high


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
