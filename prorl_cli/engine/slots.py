"""KV storage of the embedded decoder: one dense block of rows, and the parked prefixes of rows that have ended.

Rows in use are always the first ones, so a decode step reads a view, never a copy. Knows nothing of requests.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

PARKED_BYTES = 256 * 2**20
"""Prefixes kept for the next turn: some 800 rows of the quickstart's model."""

CAPACITY_STEP = 32
"""Rows and tokens of capacity are rounded up to this."""

CAPACITY_SKEW = 8
"""Added to the capacity, so that rows do not lie a power of two apart and share cache sets."""


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of every row in one tensor [2 * layers, rows, heads, capacity, head size].

    Used as the `Cache` of a Hugging Face forward pass: `aim` says where the tokens of the coming pass lie, then each
    layer's `update` scatters its keys and values there and returns what the pass may attend to.
    """

    def __init__(self, layers: int, heads: int, head_size: int, dtype: torch.dtype) -> None:
        # Cache.__init__ builds layers of its own; the mask code of the models looks at this list only.
        self.layers: list[Any] = []
        self._shape = (heads, head_size)
        self._store = torch.empty(2 * layers, 0, heads, 0, head_size, dtype=dtype)
        self._flat = torch.empty(0, dtype=torch.long)
        self._rows: torch.Tensor | int = 0
        self._length = 0

    def reserve(self, rows: int, length: int) -> None:
        """Make room for `rows` rows of `length` tokens; what is stored stays."""
        planes, old_rows, heads, old_length, size = self._store.shape
        if rows <= old_rows and length <= old_length:
            return
        if rows > old_rows:
            rows = _rounded(rows)
        if length > old_length:
            length = _rounded(length + length // 4) + CAPACITY_SKEW
        # Zeros: a masked position weighs 0, but 0 times a stray NaN would be NaN.
        store = torch.zeros(planes, max(rows, old_rows), heads, max(length, old_length), size, dtype=self._store.dtype)
        store[:, :old_rows, :, :old_length] = self._store
        self._store = store

    def aim(self, rows_B: torch.Tensor | int, positions_BQ: torch.Tensor) -> torch.Tensor:
        """Prepare a pass over `rows_B` (an int n = the first n rows, read in place) whose tokens lie at
        `positions_BQ`; returns the additive mask [B, 1, Q, length] under which a token sees itself and the past."""
        heads, _ = self._shape
        rows = torch.arange(rows_B) if isinstance(rows_B, int) else rows_B
        self._rows, self._length = rows_B, int(positions_BQ.max()) + 1
        row_head_BH = rows[:, None] * heads + torch.arange(heads)
        self._flat = (row_head_BH[:, :, None] * self._store.shape[3] + positions_BQ[:, None, :]).flatten()
        hidden = torch.arange(self._length) > positions_BQ[:, None, :, None]
        return torch.zeros(hidden.shape, dtype=self._store.dtype).masked_fill_(hidden, -torch.inf)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by attention layer `layer_idx` with [B, heads, Q, head size]; all of the aimed rows come back."""
        return self._put(2 * layer_idx, key_states), self._put(2 * layer_idx + 1, value_states)

    def _put(self, plane: int, states_BHQD: torch.Tensor) -> torch.Tensor:
        store = self._store[plane]
        store.view(-1, self._shape[1]).index_copy_(0, self._flat, states_BHQD.reshape(-1, self._shape[1]))
        rows = store[: self._rows] if isinstance(self._rows, int) else store.index_select(0, self._rows)
        return rows[:, :, : self._length]

    def move(self, source: int, target: int, length: int) -> None:
        """Row `target` becomes the first `length` tokens of row `source`."""
        self._store[:, target, :, :length] = self._store[:, source, :, :length]

    def clear_row(self, row: int) -> None:
        """Zero one row."""
        self._store[:, row] = 0

    def clear(self) -> None:
        """Zero everything: the weights have changed."""
        self._store.zero_()

    def take(self, row: int, length: int) -> torch.Tensor:
        """A copy of a row's first `length` tokens."""
        return self._store[:, row, :, :length].clone()

    def give(self, row: int, states: torch.Tensor, length: int) -> None:
        """Write the first `length` tokens of what `take` returned into a row."""
        self._store[:, row, :, :length] = states[:, :, :length]

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        """Positions and masks are always given explicitly; a model that asks gets the length of the aimed rows."""
        return self._length


class Parked:
    """Prefixes by their exact ids, least recently used out first; all of one weight version."""

    def __init__(self, limit_bytes: int = PARKED_BYTES) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._entries: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._lengths: Counter[int] = Counter()

    def put(self, ids: Sequence[int], states: torch.Tensor) -> None:
        """Keep the keys and values of `ids`."""
        key = _key(ids)
        self._drop(key)
        self._entries[key] = states
        self._lengths[len(ids)] += 1
        self._bytes += states.nbytes
        while self._bytes > self._limit:
            self._drop(next(iter(self._entries)))

    def longest(self, ids: Sequence[int]) -> tuple[int, torch.Tensor] | None:
        """The longest kept prefix of `ids`: its length and states; None when there is none."""
        key = _key(ids)
        for length in sorted((n for n in self._lengths if n <= len(ids)), reverse=True):
            prefix = key[: length * _WIDTH]
            if prefix in self._entries:
                self._entries.move_to_end(prefix)
                return length, self._entries[prefix]
        return None

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._entries.clear()
        self._lengths.clear()
        self._bytes = 0

    def _drop(self, key: bytes) -> None:
        states = self._entries.pop(key, None)
        if states is not None:
            self._bytes -= states.nbytes
            length = len(key) // _WIDTH
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]


_WIDTH = array("I").itemsize


def _rounded(number: int) -> int:
    return -(-number // CAPACITY_STEP) * CAPACITY_STEP


def _key(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()
