"""Rows as tensors: one micro-batch, right-padded and shifted. Called by trainers.

Attention is causal, so no padding mask is needed: no real token ever sees a padded one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from prorl_cli.learner.batch import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """One micro-batch: `ids` int64[B, L] and, for the columns C where anything was authored, what predicts what.

    `columns` int64[C] are positions whose next token is wanted; `targets`, `mask`, `engine` are [B, C].
    """

    ids: Tensor
    columns: Tensor
    targets: Tensor
    mask: Tensor
    engine: Tensor
    advantages: Tensor
    temperature: Tensor

    @property
    def authored(self) -> int:
        return int(self.mask.sum())

    def to(self, device: torch.device) -> Pack:
        """The same on `device`."""
        return Pack(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def pack(rows: Sequence[Row]) -> Pack:
    """Right-pad rows and shift: column t holds what the token at t + 1 was, was masked, and its engine logprob.

    Of no rows: one token that nobody authored, which keeps a rank that has run out of rows in step with the others.
    """
    if not rows:
        return _filler()
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    engine = torch.zeros(len(rows), longest)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.frombuffer(bytearray(row.sequence.token_ids), dtype=torch.int32)
        mask[number, : len(row)] = torch.frombuffer(bytearray(row.sequence.loss_mask), dtype=torch.uint8).bool()
        engine[number, : len(row)] = torch.frombuffer(bytearray(row.sequence.logprobs), dtype=torch.float32)
    columns = mask[:, 1:].any(0).nonzero().squeeze(1)
    return Pack(
        ids=ids[:, :-1],
        columns=columns,
        targets=ids[:, columns + 1],
        mask=mask[:, columns + 1],
        engine=engine[:, columns + 1],
        advantages=torch.tensor([[row.advantage] for row in rows], dtype=torch.float32),
        temperature=torch.tensor([[row.temperature] for row in rows], dtype=torch.float32),
    )


def _filler() -> Pack:
    one = torch.zeros(1, 1)
    return Pack(
        ids=one.long(), columns=torch.zeros(1, dtype=torch.int64), targets=one.long(), mask=one.bool(), engine=one,
        advantages=one, temperature=torch.ones(1, 1),
    )  # fmt: skip
