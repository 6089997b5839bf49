"""`reasoning_gym:NAME`: tasks of any data set of the reasoning-gym package; `options` are its own.

Item i of a reasoning-gym set with seed s is made from seed s + i, so sets with nearby seeds share almost all items.
Here an item's candidates come from seeds placed by a hash of (run seed, side, index), and the text of a question
says on which side it lies. Scored by the package's own `score_answer`, in the verifier process.
"""

from __future__ import annotations

import base64
import json
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.tasks.arithmetic import leads_to
from prorl_cli.tasks.hash_fixed import HashFixed
from prorl_cli.tasks.source import MAX_CANDIDATES, Item, Options, digest, first_on_side

WINDOW = 64
"""Items of one data set object; a few sets make or index all of theirs when they are opened."""

HASH_ORDERED = frozenset({"isomorphic_strings", "polynomial_multiplication", "ransom_note"})
"""Sets of reasoning-gym 0.1 whose questions depend on Python's string hashes, which differ from process to process."""

Entry = dict[str, Any]
"""What the package calls an item: question, answer, metadata."""

_GIVEN_UP = (RuntimeError, ArithmeticError, LookupError, ValueError, TypeError)
"""What generators raise for a seed that they can make nothing of."""

_HASH_FIXED = HashFixed()
_GLOBAL_RANDOM = threading.Lock()


class ReasoningGym:
    """One reasoning-gym data set. `UserError` for an unknown name or options that it refuses."""

    held_out_size = None
    rows = ()

    def __init__(self, name: str, options: Options, seed: int) -> None:
        self._name, self._options, self._seed = name, options, seed
        self._dataset = open_dataset(name, options)
        self._windowed = _indexes_what_it_made(self._dataset)

    def item(self, index: int, held_out: bool) -> Item:
        """See `Source.item`."""
        if self._name in HASH_ORDERED and sys.flags.hash_randomization:
            return self._item_of_child(index, held_out)
        candidates = self._entries(index, held_out)
        return self._item(first_on_side(candidates, _question, held_out, f"reasoning_gym:{self._name}"))

    def _item_of_child(self, index: int, held_out: bool) -> Item:
        asked = {"name": self._name, "options": self._options, "seed": self._seed, "index": index, "held_out": held_out}
        item: Item = pickle.loads(base64.b64decode(_HASH_FIXED.call(f"{__name__}:pickled_item", **asked)))
        return item

    def _entries(self, index: int, held_out: bool) -> Iterator[Entry]:
        """Candidates, in order; seeds that the generator gives up on are passed over."""
        given_up = 0
        for window in range(MAX_CANDIDATES // WINDOW):
            seed = digest("reasoning_gym", self._name, self._seed, held_out, index, window) % 2**31
            dataset = open_dataset(self._name, self._options, seed) if self._windowed else self._dataset
            for position in range(WINDOW):
                try:
                    entry = _draw(dataset, position if self._windowed else seed + position)
                except _GIVEN_UP as error:
                    given_up += 1
                    if given_up == WINDOW:
                        raise UserError(f"reasoning_gym:{self._name} fails with {self._options}: {error!r}") from error
                else:
                    yield entry

    def _item(self, entry: Entry) -> Item:
        answer = "" if entry["answer"] is None else str(entry["answer"])
        expression = entry["metadata"].get("expression")
        payload = {
            "verifier": "reasoning_gym",
            "dataset": self._name,
            "options": self._options,
            "entry": entry,
            "expression": expression if leads_to(expression, answer) else None,
        }
        return Item(question=_question(entry), answer=answer, payload=payload)


def pickled_item(*, name: str, options: Options, seed: int, index: int, held_out: bool) -> str:
    """For `HashFixed`: an item as text."""
    return base64.b64encode(pickle.dumps(_cached(name, json.dumps(options), seed).item(index, held_out))).decode()


@lru_cache(maxsize=4)
def _cached(name: str, options: str, seed: int) -> ReasoningGym:
    return ReasoningGym(name, json.loads(options), seed)


def open_dataset(name: str, options: Options, seed: int = 0) -> Any:
    """The package's own data set object; `UserError` says what is wrong with the name or the options."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"reasoning_gym has no data set {name!r}: {meant}It has {', '.join(sorted(DATASETS))}")
    if reserved := sorted({"seed", "size"} & options.keys()):
        raise UserError(f"reasoning_gym:{name}: options may not set {' or '.join(reserved)}: prorl draws them")
    try:
        return create_dataset(name, seed=seed, size=WINDOW, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"reasoning_gym:{name} refuses the options {options}: {error}") from error


def _question(entry: Entry) -> str:
    return str(entry["question"])


def _draw(dataset: Any, position: int) -> Entry:
    """One entry; sets that draw from the module `random` as well get it seeded, and everybody else theirs back."""
    with _GLOBAL_RANDOM:
        state = random.getstate()
        random.seed(position)
        try:
            entry: Entry = dataset[position]
            return entry
        finally:
            random.setstate(state)


def _indexes_what_it_made(dataset: Any) -> bool:
    """Whether the set knows only the items it was opened with; most make any item from seed + position."""
    try:
        _draw(dataset, 2**30)
    except IndexError:
        return True
    except _GIVEN_UP:
        return False
    return False
