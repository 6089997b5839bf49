"""The plain-torch trainer: one process, float32, deterministic. Same rows, order and threads: bit-equal weights.

Rows are right-padded and attention is causal, so no padding mask is needed: no real token ever sees a padded one.
Dropout stays off, so that π_old, which is the first update's own forward pass, is the policy. Called by the walk.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as serialize
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from prorl_cli.algorithm.loss import Clip, LossTerms, policy_loss, token_logprobs
from prorl_cli.errors import ProrlError
from prorl_cli.learner.batch import Batch, Row, micro_batches
from prorl_cli.learner.trainer import Diverged, Interrupted, StepNumbers, StepStats
from prorl_cli.recipe import Recipe
from prorl_cli.spool.tensors import tensor_digest

STATE = "trainer.pt"
WEIGHT_FILES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")


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


def pack(rows: list[Row]) -> Pack:
    """Right-pad rows and shift: column t holds what the token at t + 1 was, was masked, and its engine logprob."""
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


@dataclass(slots=True)
class _Sums:
    loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    clipped: float = 0.0
    weight: float = 0.0
    authored: int = 0
    padded: int = 0
    norms: list[float] = field(default_factory=list)

    def add(self, packed: Pack, terms: LossTerms, entropy: Tensor) -> None:
        self.loss += terms.loss.item()
        self.entropy += entropy.sum().item()
        self.kl += terms.kl.item()
        self.clipped += terms.clipped.item()
        self.weight += terms.weight.item()
        self.authored += packed.authored
        self.padded += packed.ids.numel()

    def stats(self) -> StepStats:
        tokens, updates = max(1, self.authored), max(1, len(self.norms))
        return StepStats(
            loss=self.loss / updates, entropy=self.entropy / tokens, kl=self.kl / tokens,
            clip_fraction=self.clipped / tokens, grad_norm=sum(self.norms) / updates,
            is_weight_mean=self.weight / tokens, authored=self.authored, padded=self.padded, updates=len(self.norms),
        )  # fmt: skip


class TorchTrainer:
    """`Trainer` for one CPU process."""

    def __init__(self, recipe: Recipe) -> None:
        self._numbers = recipe.learner
        self._seed = recipe.seed
        self._template = Path()
        self._policy: Any = None
        self._reference: Any = None
        self._reference_folder = Path()
        self._optimizer: torch.optim.AdamW
        self.dirty = False

    @property
    def vocab_size(self) -> int:
        return int(self._policy.get_input_embeddings().num_embeddings)

    def load(self, folder: Path) -> None:
        _settle(self._numbers.threads, self._seed)
        self._policy = _model(folder)
        self._template = folder
        self._optimizer = torch.optim.AdamW(self._policy.parameters(), fused=True, **self._fixed())
        self.dirty = False
        _require_plain_names(folder, self._tensors())

    def _fixed(self) -> dict[str, Any]:
        return {"betas": self._numbers.betas, "weight_decay": self._numbers.weight_decay}

    def set_reference(self, folder: Path) -> None:
        self._reference, self._reference_folder = None, folder

    def _reference_logprobs(self, packed: Pack) -> Tensor:
        if self._reference is None:
            self._reference = _model(self._reference_folder).requires_grad_(False)
        return self._frozen(self._reference, packed)

    def train(self, batch: Batch, numbers: StepNumbers, halted: Callable[[], bool]) -> StepStats:
        shares = [
            [pack(rows) for rows in micro_batches(share, self._numbers.micro_batch_tokens)] for share in batch.shares
        ]
        olds = self._start_logprobs(shares)
        sums = _Sums()
        self._optimizer.zero_grad()
        for share, old_of in zip(shares, olds, strict=True):
            total = max(1, sum(packed.authored for packed in share))
            for packed, old in zip(share, old_of, strict=True):
                if halted():
                    raise Interrupted("the step was abandoned because the learner has to stop")
                self._backward(packed, old, total, numbers, sums)
            sums.norms.append(self._update(numbers.learning_rate))
            self.dirty = True
        self.dirty = False
        return sums.stats()

    def _start_logprobs(self, shares: list[list[Pack]]) -> list[list[Tensor | None]]:
        """π_old of every micro-batch under the step's start weights; None for the first update, whose own forward
        pass is exactly that."""
        first: list[list[Tensor | None]] = [[None] * len(share) for share in shares[:1]]
        return first + [[self._frozen(self._policy, packed) for packed in share] for share in shares[1:]]

    def _forward(self, model: Any, packed: Pack) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=packed.ids, use_cache=False, logits_to_keep=packed.columns).logits
        return token_logprobs(logits, packed.targets, packed.mask, packed.temperature)

    @torch.no_grad()
    def _frozen(self, model: Any, packed: Pack) -> Tensor:
        return self._forward(model, packed)[0]

    def _backward(self, packed: Pack, old: Tensor | None, total: int, numbers: StepNumbers, sums: _Sums) -> None:
        logprobs, entropy = self._forward(self._policy, packed)
        terms = policy_loss(
            logprobs,
            logprobs.detach() if old is None else old,
            packed.engine,
            self._reference_logprobs(packed) if numbers.kl_beta else None,
            packed.advantages,
            packed.mask,
            total=total,
            clip=Clip(low=numbers.clip_low, high=numbers.clip_high, is_cap=numbers.is_cap, kl_beta=numbers.kl_beta),
        )
        torch.autograd.backward(terms.loss)
        sums.add(packed, terms, entropy)

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
        state = torch.load(folder / STATE, weights_only=True)
        self._policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            group.update(self._fixed())
        torch.set_rng_state(state["random"])
        self.dirty = False

    def export(self, folder: Path) -> dict[str, str]:
        for file in self._template.iterdir():
            if file.is_file() and not file.name.endswith(WEIGHT_FILES) and file.name != "MANIFEST.json":
                shutil.copyfile(file, folder / file.name)
        config = json.loads((folder / "config.json").read_text())
        config.pop("torch_dtype", None)
        (folder / "config.json").write_text(json.dumps({**config, "dtype": "float32"}, indent=2) + "\n")
        # Serialised first, so that a full disk is an OSError with its errno and not the library's own error.
        (folder / "model.safetensors").write_bytes(serialize(self._tensors(), metadata={"format": "pt"}))
        return self.digests()

    def digests(self) -> dict[str, str]:
        return {name: tensor_digest(tensor) for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        """What an HF folder holds: each storage once (tied weights under their first name)."""
        seen: set[int] = set()
        found = {}
        for name, tensor in self._policy.state_dict().items():
            if tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found[name] = tensor.detach().contiguous()
        return found


def _settle(threads: int, seed: int) -> None:
    """Same numbers every time: threads, seed, and only kernels whose result is a function of their input."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    # on by default with the line above, for debugging: it would write all fresh memory a second time
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _model(folder: Path) -> Any:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise ProrlError(f"cannot load the model of {folder}: {error}") from error
    return model.eval()


def _require_plain_names(folder: Path, tensors: dict[str, Tensor]) -> None:
    stored = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            stored.update(opened.keys())
    if stored != set(tensors):
        odd = sorted(stored ^ set(tensors))[:4]
        raise ProrlError(f"{folder}: its tensors are stored under other names than transformers gives them: {odd}")
