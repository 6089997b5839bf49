"""Token losses of a policy step in torch: clipped surrogate, k3 KL, truncated importance weights.

All tensors of one call share one shape, usually [B, T] = sequence × predicted token; `mask` is bool and True on the
tokens that the policy authored. What lies under a False mask may be anything, inf and NaN included: inputs go
through `torch.where` before any arithmetic, because 0 × inf is NaN forward and backward. Sums are divided by the
authored tokens of the whole optimizer update, so micro-batches simply add up. Called by the learner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""exp of more overflows float32 soon, and a clipped branch of inf has a NaN gradient (verl and OpenRLHF: ±20 too)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The numbers of the objective, as the step's manifest gives them."""

    low: float
    high: float
    is_cap: float
    kl_beta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """`loss` (scalar, differentiable) and detached sums over authored tokens."""

    loss: Tensor
    kl: Tensor
    clipped: Tensor
    weight: Tensor


def token_logprobs(logits: Tensor, targets: Tensor, mask: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of `targets` and exact Shannon entropies (nats, detached), both [B, T], 0 outside the mask.

    `logits` [B, T, V] are divided by `temperature` [B, 1] first: the distribution sampled from, not the raw one.
    Only rows under the mask are ever read.
    """
    rows = logits[mask].float() if logits.dtype in (torch.float16, torch.bfloat16) else logits[mask]
    scaled = torch.log_softmax(rows / temperature.expand(mask.shape)[mask].unsqueeze(-1).to(rows.dtype), dim=-1)
    chosen = scaled.gather(-1, targets[mask].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = -(scaled.exp() * scaled.clamp_min(torch.finfo(scaled.dtype).min)).sum(-1)
    return _spread(chosen, mask), _spread(entropy, mask)


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def importance_weights(old: Tensor, engine: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated, detached min(π_old/π_engine, cap); 1 outside the mask.

    `cap` 0 means no correction: ones, fit only for data of the step's own start weights (`correction_refusal`).
    """
    if not cap:
        return torch.ones_like(old, requires_grad=False)
    return _log_ratio(old, engine, mask).exp().clamp(max=cap).detach()


def k3(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Per-token estimate of KL(π‖π_ref) on tokens sampled from π: exp(d) − 1 − d with d = log π_ref − log π.

    Never negative, unbiased in value. Its plain gradient, used here, is in expectation that of KL(π_ref‖π).
    """
    d = _log_ratio(reference, logprobs, mask)
    return torch.expm1(d) - d


def policy_loss(
    logprobs: Tensor,
    old: Tensor,
    engine: Tensor,
    reference: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    total: int,
    clip: Clip,
) -> LossTerms:
    """Σ over authored tokens of −w·min(rA, clip(r, 1−low, 1+high)A) + β·k3, divided by `total`.

    r = π/π_old, w the importance weight (on the surrogate only, as in TRL), `advantages` broadcast to [B, T].
    `total` = authored tokens of the whole optimizer update. `reference` None: no KL term.
    """
    ratio = _log_ratio(logprobs, old.detach(), mask).exp()
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    weight = importance_weights(old, engine, mask, clip.is_cap)
    kl = k3(logprobs, reference, mask) if reference is not None else torch.zeros_like(ratio)
    per_token = torch.where(mask, clip.kl_beta * kl - weight * surrogate, 0.0)
    clipped = mask & (surrogate.detach() < (ratio * advantages).detach())
    return LossTerms(
        loss=per_token.sum() / total,
        kl=torch.where(mask, kl, 0.0).sum().detach(),
        clipped=clipped.sum(),
        weight=torch.where(mask, weight, 0.0).sum(),
    )


def _log_ratio(above: Tensor, below: Tensor, mask: Tensor) -> Tensor:
    """log(above/below), bounded, 0 outside the mask; each input is cleaned first so that no NaN gradient flows."""
    difference = torch.where(mask, above, 0.0) - torch.where(mask, below, 0.0)
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
