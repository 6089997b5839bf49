"""What every rank of a DeepSpeed learner does at the same time. Each public method is a collective.

Deterministic on CPUs for the same number of ranks: which rank trains on which rows is decided before, and sums over
ranks are made in one order. Called by the DeepSpeed trainer (rank 0) and by followers.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from prorl_cli import fsio
from prorl_cli.errors import ProrlError, UserError
from prorl_cli.learner.batch import Share
from prorl_cli.learner.folders import load_model, plain_tensors, require_plain_names, settle, write_folder
from prorl_cli.learner.policy import Policy
from prorl_cli.learner.ranks import Place
from prorl_cli.learner.trainer import Diverged, StepNumbers, StepStats
from prorl_cli.recipe import Recipe
from prorl_cli.spool.canary import CANARY, encode, measure
from prorl_cli.spool.tensors import tensor_digest

# DeepSpeed looks for an accelerator while it is imported; a node may have its software and none of its hardware.
os.environ["DS_ACCELERATOR"] = "cuda" if torch.cuda.is_available() else "cpu"
import deepspeed
from deepspeed.ops import __compatible_ops__

# An operation that this room never asks for: compiled at the first start of every user, with a lock that outlives a
# killed compiler, and with segments in /dev/shm that outlive killed ranks.
__compatible_ops__["deepspeed_shm_comm"] = False
logging.getLogger("DeepSpeed").setLevel(logging.WARNING)

TAG = "state"
SHAPE = "ranks.json"
_BUCKET = 500_000_000
"""DeepSpeed's own default of elements reduced at once; a smaller model needs no such buffer."""


class ShardedPolicy(Policy):
    """One rank's part of policy and optimizer; the process group exists."""

    def __init__(self, recipe: Recipe, place: Place) -> None:
        super().__init__(recipe)
        self._place = place
        self._template = Path()
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())

    @property
    def _leads(self) -> bool:
        return self._place.rank == 0

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────

    def load(self, folder: Path) -> None:
        """Policy from a complete HF folder, with a fresh optimizer."""
        settle(self._numbers.threads, self._seed, self._device.type)
        self._let_go()
        model = load_model(folder)
        require_plain_names(folder, plain_tensors(model.state_dict()))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True, **self._fixed())
        self._policy, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=self._config(model))
        # it would train with dropout otherwise
        self._policy.eval()
        self._template = folder
        self.dirty = False

    def _let_go(self) -> None:
        if self._policy is not None:
            self._policy.destroy()
            self._policy = None
            gc.collect()

    def _config(self, model: Any) -> dict[str, Any]:
        bucket = min(_BUCKET, sum(parameter.numel() for parameter in model.parameters()))
        return {
            # rows are dealt and losses divided before DeepSpeed sees them
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": self._numbers.max_grad_norm if self._numbers.zero else 0.0,
            "zero_optimization": {"stage": self._numbers.zero, "reduce_bucket_size": bucket},
        }

    def export(self, folder: Path) -> dict[str, str]:
        """Rank 0 writes a complete HF folder; its digests, on rank 0."""
        tensors, canary = self._gathered(), measure(self._policy)
        if self._leads:
            write_folder(self._template, folder, tensors)
            (folder / CANARY).write_bytes(encode(canary))
        return _digests(tensors)

    def digests(self) -> dict[str, str]:
        """Of each tensor, on rank 0."""
        return _digests(self._gathered())

    def _gathered(self) -> dict[str, Tensor]:
        """The whole policy in the memory of rank 0, under its plain names; nothing on the other ranks."""
        state = self._policy.module.state_dict(keep_vars=True)
        if self._numbers.zero < 3:
            return {name: tensor.cpu() for name, tensor in plain_tensors(state).items()} if self._leads else {}
        found, seen = {}, set()
        for name, tensor in state.items():
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            with deepspeed.zero.GatheredParameters([tensor], enabled=hasattr(tensor, "ds_id")):
                if self._leads:
                    found[name] = tensor.detach().cpu().clone().contiguous()
        return found

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────

    def save(self, folder: Path) -> None:
        """Every rank leaves its part in `folder`; all are durable when this returns."""
        random = {"random": torch.get_rng_state()}
        self._policy.save_checkpoint(str(folder), tag=TAG, client_state=random, save_latest=False)
        if self._leads:
            (folder / SHAPE).write_text(json.dumps(self._shape()))
        fsio.fsync_tree(folder)
        distributed.barrier()

    def restore(self, folder: Path) -> None:
        """Inverse of `save`, bit for bit; `load` came before."""
        self._require_shape(folder)
        path, state = self._policy.load_checkpoint(str(folder), tag=TAG)
        if path is None:
            raise ProrlError(f"DeepSpeed cannot load {folder}")
        for group in self._policy.optimizer.param_groups:
            group.update(self._fixed())
        torch.set_rng_state(state["random"])
        self.dirty = False

    def _shape(self) -> dict[str, int]:
        return {"ranks": self._place.ranks, "zero": self._numbers.zero}

    def _require_shape(self, folder: Path) -> None:
        saved = json.loads(fsio.read(folder / SHAPE) or b"{}")
        if saved != self._shape():
            raise UserError(
                f"{folder} was saved by a learner of another shape ({saved or 'not of DeepSpeed'}); this one has "
                f"{self._shape()}: go on with learner.backend, learner.zero and ranks as they were"
            )

    # ── one step ──────────────────────────────────────────────────────────────────────────────────────────

    def train(self, shares: Sequence[Share], numbers: StepNumbers, halted: Callable[[], bool]) -> StepStats:
        """One step in place. Only rank 0's `halted` counts."""
        sums = self.step(shares, numbers, lambda: self._agreed(halted))
        mine = torch.tensor(sums.vector, dtype=torch.float64, device=self._device)
        all_of_them = [torch.empty_like(mine) for _ in range(self._place.ranks)]
        distributed.all_gather(all_of_them, mine)
        return sums.stats([vector.tolist() for vector in all_of_them])

    def _agreed(self, halted: Callable[[], bool]) -> bool:
        verdict = torch.tensor([self._leads and halted()], dtype=torch.uint8, device=self._device)
        distributed.broadcast(verdict, src=0)
        return bool(verdict.item())

    def _backward(self, loss: Tensor, *, last: bool) -> None:
        self._policy.set_gradient_accumulation_boundary(last)
        # DeepSpeed takes the mean over ranks; the loss is divided by the tokens of all of them already
        self._policy.backward(loss * self._place.ranks)
        if not last:
            self._policy.step()

    def _update(self, learning_rate: float) -> float:
        for group in self._policy.optimizer.param_groups:
            group["lr"] = learning_rate
        if not self._numbers.zero:
            return self._update_unsharded()
        self._policy.step()
        if not self._policy.was_step_applied():
            raise Diverged("the gradient's norm is not finite")
        return float(self._policy.get_global_grad_norm())

    def _update_unsharded(self) -> float:
        """Without ZeRO, DeepSpeed neither looks at the norm nor tells it."""
        norm = torch.nn.utils.clip_grad_norm_(self._policy.module.parameters(), self._numbers.max_grad_norm).item()
        if norm != norm or norm == float("inf"):
            self._policy.zero_grad()
            raise Diverged(f"the gradient's norm is {norm}")
        self._policy.step()
        return norm


def _digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    return {name: tensor_digest(tensor) for name, tensor in tensors.items()}
