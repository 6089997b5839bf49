"""One training step as one rank does it: forward passes, losses, sums. The same code for every trainer.

Dropout stays off, so that π_old, which is the first update's own forward pass, is the policy. How gradients meet and
become an update is the subclass's affair. Called by trainers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prorl_cli.algorithm.loss import Clip, LossTerms, policy_loss, token_logprobs
from prorl_cli.learner.batch import Share
from prorl_cli.learner.folders import load_model
from prorl_cli.learner.packing import Pack, pack
from prorl_cli.learner.trainer import Interrupted, StepNumbers, StepStats
from prorl_cli.recipe import Recipe


@dataclass(slots=True)
class Sums:
    """What a rank adds up over its micro-batches; `norms` has one entry an update, the same on every rank."""

    loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    weight: float = 0.0
    authored: int = 0
    padded: int = 0
    norms: list[float] = field(default_factory=list)

    def add(self, packed: Pack, terms: LossTerms, entropy: Tensor) -> None:
        """One micro-batch."""
        self.loss += terms.loss.item()
        self.entropy += entropy.sum().item()
        self.kl += terms.kl.item()
        self.clipped += terms.clipped.item()
        self.weight += terms.weight.item()
        self.authored += packed.authored
        self.padded += packed.ids.numel()

    @property
    def vector(self) -> list[float]:
        """What ranks exchange; `stats` takes one of each."""
        return [self.loss, self.entropy, self.kl, self.clipped, self.weight, self.authored, self.padded]

    def stats(self, vectors: Sequence[Sequence[float]]) -> StepStats:
        """Of all ranks."""
        loss, entropy, kl, clipped, weight, authored, padded = map(sum, zip(*vectors, strict=True))
        tokens, updates = max(1, authored), max(1, len(self.norms))
        return StepStats(
            loss=loss / updates, entropy=entropy / tokens, kl=kl / tokens, clip_fraction=clipped / tokens,
            grad_norm=sum(self.norms) / updates, is_weight_mean=weight / tokens, authored=int(authored),
            padded=int(padded), updates=len(self.norms), ranks=len(vectors),
            authored_by_rank=tuple(int(vector[5]) for vector in vectors),
        )  # fmt: skip


class Policy(ABC):
    """Policy, reference and optimizer of one rank."""

    def __init__(self, recipe: Recipe) -> None:
        self._numbers = recipe.learner
        self._seed = recipe.seed
        self._device = torch.device("cpu")
        self._policy: Any = None
        self._reference: Any = None
        self._reference_folder = Path()
        self.dirty = False

    @property
    def vocab_size(self) -> int:
        """Token ids at or above this do not exist."""
        return int(self._policy.get_input_embeddings().num_embeddings)

    def set_reference(self, folder: Path) -> None:
        """Reference policy from a complete HF folder, loaded when it is first asked."""
        self._reference, self._reference_folder = None, folder

    def step(self, shares: Sequence[Share], numbers: StepNumbers, halted: Callable[[], bool]) -> Sums:
        """Every update of one step, in place."""
        packs = [[pack(part).to(self._device) for part in share.parts] for share in shares]
        olds = self._start_logprobs(packs)
        sums = Sums()
        for share, packs_of, old_of in zip(shares, packs, olds, strict=True):
            for number, (packed, old) in enumerate(zip(packs_of, old_of, strict=True), 1):
                if halted():
                    raise Interrupted("the step was abandoned because the learner has to stop")
                loss = self._loss(packed, old, share.total, numbers, sums)
                self._backward(loss, last=number == len(packs_of))
            sums.norms.append(self._update(numbers.learning_rate))
            self.dirty = True
        self.dirty = False
        return sums

    @abstractmethod
    def _backward(self, loss: Tensor, *, last: bool) -> None:
        """Add this micro-batch's gradient; `last` of its update."""

    @abstractmethod
    def _update(self, learning_rate: float) -> float:
        """Clip, apply, clear; returns the gradient's norm, `Diverged` with nothing applied when it is not finite."""

    def _fixed(self) -> dict[str, Any]:
        return {"betas": self._numbers.betas, "weight_decay": self._numbers.weight_decay}

    def _start_logprobs(self, packs: list[list[Pack]]) -> list[list[Tensor | None]]:
        """π_old of every micro-batch under the step's start weights; None for the first update, whose own forward
        pass is exactly that."""
        first: list[list[Tensor | None]] = [[None] * len(share) for share in packs[:1]]
        return first + [[self._frozen(self._policy, packed) for packed in share] for share in packs[1:]]

    def _loss(self, packed: Pack, old: Tensor | None, total: int, numbers: StepNumbers, sums: Sums) -> Tensor:
        logprobs, entropy = self._forward(self._policy, packed)
        terms = policy_loss(
            logprobs,
            logprobs.detach() if old is None else old,
            packed.engine,
            self._reference_logprobs(packed) if numbers.kl_beta else None,
            packed.advantages,
            packed.mask,
            total=max(1, total),
            clip=Clip(low=numbers.clip_low, high=numbers.clip_high, is_cap=numbers.is_cap, kl_beta=numbers.kl_beta),
        )
        sums.add(packed, terms, entropy)
        return terms.loss

    def _forward(self, model: Any, packed: Pack) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=packed.ids, use_cache=False, logits_to_keep=packed.columns).logits
        return token_logprobs(logits, packed.targets, packed.mask, packed.temperature)

    @torch.no_grad()
    def _frozen(self, model: Any, packed: Pack) -> Tensor:
        return self._forward(model, packed)[0]

    def _reference_logprobs(self, packed: Pack) -> Tensor:
        if self._reference is None:
            self._reference = load_model(self._reference_folder).requires_grad_(False).to(self._device)
        return self._frozen(self._reference, packed)
