"""The supervised start of the tiny model: first clean transcripts, until it can do the form, then noisy ones.

Deterministic for a given number of threads. Called by the room's main.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from prorl_cli.agent.tiny import END
from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import Warmstart
from prorl_cli.warmstart.folder import Folder
from prorl_cli.warmstart.tiny_model import as_folder, build
from prorl_cli.warmstart.transcripts import Noise, Transcript, stream

Say = Callable[[str], None]

CLEAN = Noise(guess=0.0)
BETAS = (0.9, 0.98)
MAX_GRAD_NORM = 1.0
WARM_UP = 30
"""Steps in which the learning rate rises."""
FLOOR = 0.05
"""Of the learning rate, where its cosine ends."""
POOL = 16
"""Batches whose transcripts are sorted by length together: less padding, still mixed."""
MAX_THREADS = 4
"""More do not help a model this small."""
SAY_EVERY_S = 1.0


def make_tiny(recipe: Recipe, say: Say) -> Folder:
    """Build, train and pack the tiny model."""
    numbers = recipe.warmstart
    torch.set_num_threads(min(MAX_THREADS, os.cpu_count() or 1))
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(numbers.seed)
    model = build(recipe).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=numbers.lr, betas=BETAS, weight_decay=0.0, fused=True)
    say(f"warm start: training the tiny model ({model.num_parameters()} parameters, {numbers.steps} steps)")
    progress = _Progress(numbers.steps, say)
    for step, batch in enumerate(batches(recipe)):
        for group in optimizer.param_groups:
            group["lr"] = numbers.lr * schedule(step, numbers.steps)
        loss = _loss(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        progress.done(step + 1, loss)
    return as_folder(model.eval())


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate at `step` (from 0): a short linear rise under a cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARM_UP) * (FLOOR + (1 - FLOOR) * cosine)


def batches(recipe: Recipe) -> Iterator[list[Transcript]]:
    """As many batches as the recipe has steps, transcripts of similar length together."""
    numbers = recipe.warmstart
    following, order = stream(recipe), Random(numbers.seed)
    clean = round(numbers.clean * numbers.steps)
    for steps, noise in ((clean, CLEAN), (numbers.steps - clean, _noise(numbers))):
        for start in range(0, steps, POOL):
            count = min(POOL, steps - start)
            pool = sorted((following(noise) for _ in range(count * numbers.batch)), key=lambda made: made.prompt)
            cut = [pool[at : at + numbers.batch] for at in range(0, len(pool), numbers.batch)]
            order.shuffle(cut)
            yield from cut


def _noise(numbers: Warmstart) -> Noise:
    return Noise(guess=numbers.guess, miscall=numbers.miscall, miscopy=numbers.miscopy)


def _loss(model: Any, batch: list[Transcript]) -> Tensor:
    """Mean negative log-likelihood of the authored tokens. Right padding needs no mask under causal attention."""
    longest = max(len(made.ids) for made in batch)
    ids = torch.tensor([made.ids + (END,) * (longest - len(made.ids)) for made in batch])
    authored = torch.tensor([made.authored + (False,) * (longest - len(made.ids)) for made in batch])[:, 1:]
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    return cross_entropy(logits[authored], ids[:, 1:][authored])


class _Progress:
    """A line a second."""

    def __init__(self, steps: int, say: Say) -> None:
        self._steps, self._say = steps, say
        self._started = self._said = time.monotonic()

    def done(self, step: int, loss: Tensor) -> None:
        now = time.monotonic()
        if now - self._said < SAY_EVERY_S and step < self._steps:
            return
        if not math.isfinite(loss.item()):
            raise UserError(f"the warm start diverged at step {step}: lower warmstart.lr")
        self._said = now
        left = (now - self._started) / step * (self._steps - step)
        self._say(f"warm start: step {step} of {self._steps}, loss {loss.item():.3f}, {left:.0f} s left")
