"""What the learner's walk asks of a trainer: plain torch in one process, or DeepSpeed in several.

A trainer knows weights, optimizer and numbers; it knows nothing of runs, manifests or positions. Called by the walk,
always from one and the same thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prorl_cli.errors import ProrlError
from prorl_cli.learner.batch import Batch


class Interrupted(ProrlError):
    """The step was abandoned half-way because its process has to stop; it will be replayed."""


class Diverged(ProrlError):
    """The loss or the gradient of a step is not finite; the update was not applied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """Every number of one step, from its manifest."""

    learning_rate: float
    kl_beta: float
    clip_low: float
    clip_high: float
    is_cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Token means over the step. `kl` is 0 where β is 0: it is not measured then. `authored` tokens were trained on,
    `padded` tokens went through each pass; `grad_norm` is before clipping, mean over updates; `authored_by_rank` says
    who trained on how many."""

    loss: float
    entropy: float
    kl: float
    clip_fraction: float
    grad_norm: float
    is_weight_mean: float
    authored: int
    padded: int
    updates: int
    ranks: int
    authored_by_rank: tuple[int, ...]


class Trainer(Protocol):
    """Policy, reference and optimizer of one run."""

    @property
    def vocab_size(self) -> int:
        """Token ids at or above this do not exist."""

    @property
    def dirty(self) -> bool:
        """A step was begun and left half-way: the weights are of no position until `load` or `restore`."""

    def load(self, folder: Path) -> None:
        """Policy from a complete HF folder, with a fresh optimizer; `ProrlError` says what is wrong with it."""

    def set_reference(self, folder: Path) -> None:
        """Reference policy from a complete HF folder."""

    def train(self, batch: Batch, numbers: StepNumbers, halted: Callable[[], bool]) -> StepStats:
        """One step in place. `halted` is asked between micro-batches: True raises `Interrupted`, and then no step but
        `save` may follow. `Diverged` when the gradient is not finite."""

    def save(self, folder: Path) -> None:
        """Weights, optimizer and random state into an empty folder."""

    def restore(self, folder: Path) -> None:
        """Inverse of `save`, bit for bit; `load` came before."""

    def export(self, folder: Path) -> dict[str, str]:
        """A complete HF folder of the policy; returns `digests`."""

    def digests(self) -> dict[str, str]:
        """sha256 of each policy tensor's raw little-endian bytes, by its name in the HF folder."""

    def close(self) -> None:
        """Let go of whatever else takes part; nothing is asked afterwards."""
