"""The plain-torch trainer: one process, float32, deterministic. Same rows, order and threads: bit-equal weights.

Called by the walk.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from prorl_cli.errors import UserError
from prorl_cli.learner.batch import Batch, schedule
from prorl_cli.learner.folders import load_model, plain_tensors, require_plain_names, settle, write_folder
from prorl_cli.learner.policy import Policy
from prorl_cli.learner.trainer import Diverged, StepNumbers, StepStats
from prorl_cli.recipe import Recipe
from prorl_cli.spool.canary import write_canary
from prorl_cli.spool.tensors import tensor_digest

STATE = "trainer.pt"


class TorchTrainer(Policy):
    """`Trainer` for one CPU process."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self._template = Path()
        self._optimizer: torch.optim.AdamW

    def load(self, folder: Path) -> None:
        settle(self._numbers.threads, self._seed)
        self._policy = load_model(folder)
        self._template = folder
        self._optimizer = torch.optim.AdamW(self._policy.parameters(), fused=True, **self._fixed())
        self.dirty = False
        require_plain_names(folder, self._tensors())

    def train(self, batch: Batch, numbers: StepNumbers, halted: Callable[[], bool]) -> StepStats:
        (shares,) = schedule(batch, ranks=1, budget=self._numbers.micro_batch_tokens)
        self._optimizer.zero_grad()
        sums = self.step(shares, numbers, halted)
        return sums.stats([sums.vector])

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        torch.autograd.backward(loss)

    def _update(self, learning_rate: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self._numbers.max_grad_norm).item()
        if norm != norm or norm == float("inf"):
            self._optimizer.zero_grad()
            raise Diverged(f"the gradient's norm is {norm}")
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm

    def save(self, folder: Path) -> None:
        state = {
            "policy": self._policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        packed = io.BytesIO()
        torch.save(state, packed)
        (folder / STATE).write_bytes(packed.getbuffer())

    def restore(self, folder: Path) -> None:
        if not (folder / STATE).exists():
            raise UserError(f"{folder} was not saved by `learner.backend: torch`: go on with the backend it began with")
        state = torch.load(folder / STATE, weights_only=True)
        self._policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group.update(self._fixed())
        torch.set_rng_state(state["random"])
        self.dirty = False

    def export(self, folder: Path) -> dict[str, str]:
        write_folder(self._template, folder, self._tensors())
        write_canary(folder, self._policy)
        return self.digests()

    def digests(self) -> dict[str, str]:
        return {name: tensor_digest(tensor) for name, tensor in self._tensors().items()}

    def close(self) -> None:
        """Nothing to let go of."""

    def _tensors(self) -> dict[str, Tensor]:
        return plain_tensors(self._policy.state_dict())
