"""Continuous batched decoding of a Hugging Face causal LM on a CPU: requests join and leave between two steps.

One step feeds one token of every row. What a row lacks in keys and values (its prompt when it joins, everything
after the weights have changed) is filled first, in padded batches without logits. Single-threaded and without I/O;
`thread` runs it. Refuses models whose layers see less than the whole past.

Why not transformers' own continuous batching (read in 5.24): one seed for the whole batch where a request needs its
own, and nothing recomputes keys and values of running requests when the weights change.
"""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from prorl_cli.engine.sampling import sample, uniforms
from prorl_cli.engine.slots import Parked, SlotCache
from prorl_cli.errors import UserError

FILL_TOKENS = 1024
"""Padded tokens of one fill pass: larger passes are no faster on a CPU and leave its caches."""

ROPE_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that depend on the longest row of a batch, so on a request's neighbours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    """Checked by the server: ids inside the vocabulary, room for at least one token."""

    token_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """`spans` are (version, start, end) over `token_ids`; `finish_reason` is stop, length or abort."""

    token_ids: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, int]]
    finish_reason: str


@dataclass(slots=True, kw_only=True)
class _Row:
    ticket: int
    request: DecodeRequest
    tokens: list[int]
    logprobs: list[float] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(version, generated tokens when it took over)."""

    @property
    def generated(self) -> int:
        return len(self.logprobs)

    def completion(self, reason: str) -> Completion:
        bounds = pairwise([*self.marks, (-1, self.generated)])
        spans = [(version, start, end) for (version, start), (_, end) in bounds if end > start]
        ids = self.tokens[len(self.request.token_ids) :]
        return Completion(token_ids=ids, logprobs=self.logprobs, spans=spans, finish_reason=reason)


@dataclass(frozen=True, slots=True)
class Gap:
    """Tokens `start:end` of a row whose keys and values are missing."""

    row: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def fill_plan(gaps: Iterable[Gap], budget: int) -> list[list[Gap]]:
    """Batches of similar gaps, each at most `budget` padded tokens; a longer gap goes alone, piece after piece."""
    batches: list[list[Gap]] = []
    tails = []
    for gap in gaps:
        start = gap.start
        while gap.end - start > budget:
            batches.append([Gap(gap.row, start, start + budget)])
            start += budget
        tails.append(Gap(gap.row, start, gap.end))
    open_batch: list[Gap] = []
    for gap in sorted(tails, key=lambda gap: gap.size, reverse=True):
        if open_batch and (len(open_batch) + 1) * open_batch[0].size > budget:
            batches.append(open_batch)
            open_batch = []
        open_batch.append(gap)
    return [*batches, open_batch] if open_batch else batches


class Decoder:
    """`add` requests, `step` until `idle`; `reload` between two steps. All from one thread."""

    def __init__(self, model: Any, *, slots: int) -> None:
        config = model.config
        refuse_unfit(config)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.version = -1
        self.generated = 0
        self._model = model
        self._cache = SlotCache(config.num_hidden_layers, heads, size, model.dtype)
        self._parked = Parked()
        # The keyword was renamed in transformers 5.2x; the old one warns.
        new = "cache" in inspect.signature(model.forward).parameters
        self._context = {"cache" if new else "past_key_values": self._cache, "use_cache": True}
        self._slots = slots
        self._rows: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self._position = np.zeros(slots, np.int64)
        self._feed = np.zeros(slots, np.int64)
        self._seed = np.zeros(slots, np.uint64)
        self._drawn = np.zeros(slots, np.uint64)
        self._temperature = np.zeros(slots, np.float32)

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not (self._rows or self._waiting)

    def add(self, ticket: int, request: DecodeRequest) -> None:
        """Queue a request; it joins at a coming step, in order of arrival."""
        self._waiting.append(_Row(ticket=ticket, request=request, tokens=list(request.token_ids)))

    @torch.inference_mode()
    def abort(self, ticket: int) -> Completion | None:
        """Take a request out; what it has generated so far, or None when it is not here (any more)."""
        for row in self._waiting:
            if row.ticket == ticket:
                self._waiting.remove(row)
                return row.completion("abort")
        for index, row in enumerate(self._rows):
            if row.ticket == ticket:
                self._remove(index)
                return row.completion("abort")
        return None

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Generate one token for every row; the requests that ended with it."""
        self._join()
        if not self._rows:
            return []
        ids, logprobs = self._draw(len(self._rows))
        return self._book(ids.tolist(), logprobs.tolist())

    @torch.inference_mode()
    def reload(self, version: int, load: Callable[[], None]) -> None:
        """Call `load` to change the model's weights in place, then recompute what running rows hold under them."""
        load()
        self.version = version
        self._parked.clear()
        self._cache.clear()
        for row in self._rows:
            row.marks.append((version, row.generated))
        self._fill([Gap(index, 0, len(row.tokens) - 1) for index, row in enumerate(self._rows)])

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────

    def _join(self) -> None:
        """Rows for waiting requests. Of several with one prompt (a group) the first is filled, the others copy."""
        leaders: list[int] = []
        followers: list[int] = []
        seen: set[tuple[int, ...]] = set()
        while self._waiting and len(self._rows) < self._slots:
            row = self._waiting.popleft()
            index = self._enter(row)
            prompt = tuple(row.tokens)
            (followers if prompt in seen else leaders).append(index)
            seen.add(prompt)
        self._warm(leaders)
        self._warm(followers)

    def _enter(self, row: _Row) -> int:
        index = len(self._rows)
        self._rows.append(row)
        row.marks.append((self.version, 0))
        self._position[index] = len(row.tokens) - 1
        self._feed[index] = row.tokens[-1]
        self._seed[index] = row.request.seed % 2**64
        self._drawn[index] = 0
        self._temperature[index] = row.request.temperature
        return index

    def _warm(self, indices: list[int]) -> None:
        gaps = [self._restore(index) for index in indices]
        self._fill(gaps)
        for gap in gaps:
            # Later turns restore their own first turns; only a first prompt is worth keeping for others.
            if gap.start == 0 and gap.size:
                self._park(gap.row, gap.end)

    def _restore(self, index: int) -> Gap:
        """Copy the longest kept prefix into the row; what is still missing."""
        known, wanted = 0, self._rows[index].tokens[:-1]
        if found := self._parked.longest(wanted):
            known, states = found
            self._cache.reserve(len(self._rows), len(wanted))
            self._cache.give(index, states, known)
        return Gap(index, known, len(wanted))

    def _park(self, index: int, length: int) -> None:
        self._parked.put(self._rows[index].tokens[:length], self._cache.take(index, length))

    def _fill(self, gaps: list[Gap]) -> None:
        for batch in fill_plan((gap for gap in gaps if gap.size), FILL_TOKENS):
            width = max(gap.size for gap in batch)
            # Padding lies behind a row's end, where it is hidden until the row itself overwrites it; and it is a token
            # of that row, so that it holds NaN only where the row does.
            lines = [self._rows[gap.row].tokens[gap.start : gap.end] for gap in batch]
            ids = torch.tensor([line + line[-1:] * (width - len(line)) for line in lines])
            positions = torch.tensor([gap.start for gap in batch])[:, None] + torch.arange(width)
            self._cache.reserve(len(self._rows), int(positions.max()) + 1)
            mask = self._cache.aim(torch.tensor([gap.row for gap in batch]), positions)
            self._model.base_model(ids, attention_mask=mask, position_ids=positions, **self._context)

    # ── one step ──────────────────────────────────────────────────────────────────────────────────────────

    def _draw(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.from_numpy(self._position[:rows, None])
        self._cache.reserve(rows, int(positions.max()) + 1)
        mask = self._cache.aim(rows, positions)
        ids = torch.from_numpy(self._feed[:rows, None])
        logits = self._model(ids, attention_mask=mask, position_ids=positions, **self._context).logits[:, -1]
        uniform = torch.from_numpy(uniforms(self._seed[:rows], self._drawn[:rows]))
        return sample(logits, torch.from_numpy(self._temperature[:rows]), uniform)

    def _book(self, ids: list[int], logprobs: list[float]) -> list[tuple[int, Completion]]:
        count = len(ids)
        self.generated += count
        self._feed[:count] = ids
        self._position[:count] += 1
        self._drawn[:count] += np.uint64(1)
        ended = []
        # From the last row on: removing one moves only rows that are done with.
        for index in reversed(range(count)):
            row = self._rows[index]
            row.tokens.append(ids[index])
            row.logprobs.append(logprobs[index])
            if reason := self._end(row):
                ended.append((row.ticket, row.completion(reason)))
                self._park(index, len(row.tokens) - 1)
                self._remove(index)
        return ended

    @staticmethod
    def _end(row: _Row) -> str:
        if row.tokens[-1] in row.request.stop_ids:
            return "stop"
        return "length" if row.generated >= row.request.max_tokens else ""

    def _remove(self, index: int) -> None:
        last = len(self._rows) - 1
        self._clean(index)
        if index != last:
            self._cache.move(last, index, len(self._rows[last].tokens) - 1)
            self._clean(last)
            self._rows[index] = self._rows[last]
            for values in (self._position, self._feed, self._seed, self._drawn, self._temperature):
                values[index] = values[last]
        self._rows.pop()

    def _clean(self, index: int) -> None:
        """A masked position weighs 0, but 0 times NaN is NaN: what a spoilt row leaves would spoil the next one."""
        if not math.isfinite(self._rows[index].logprobs[-1]):
            self._cache.clear_row(index)


def refuse_unfit(config: Any) -> None:
    """`UserError` for a model that this decoder would serve wrongly."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    rope = (getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}).get("rope_type")
    if layers != {"full_attention"} or rope in ROPE_BY_LENGTH:
        raise UserError(
            f"the embedded engine cannot serve this {config.model_type} model (layers: {', '.join(sorted(layers))}; "
            f"rope: {rope}): it needs full attention in every layer and length-independent positions; "
            "use `engine: {kind: vllm}`"
        )
