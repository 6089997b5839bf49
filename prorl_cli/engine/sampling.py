"""Sampling by inverse CDF from counter-based uniforms: token k of a request is drawn with number k of its seed.

So a request's tokens depend on weights, prompt, temperature and seed, never on its neighbours in the batch or on how
often it was interrupted. One caveat: matrix products round differently at other batch shapes (about 1e-6 in a
logit), so a draw that falls that close to a boundary of the CDF may pick the neighbouring token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _TO_53_BITS = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def uniforms(seeds_B: npt.NDArray[np.uint64], counters_B: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Float64[B] in [0, 1): SplitMix64's output number `counter` of the stream that hashes from `seed`."""
    # Seeds of one run are neighbours (a counter), so the seed is mixed before it becomes a stream's start.
    mixed = _mix(_mix(seeds_B + _GAMMA) + (counters_B + np.uint64(1)) * _GAMMA)
    return (mixed >> _TO_53_BITS).astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> _SHIFT_1)) * _MIX_1
    state = (state ^ (state >> _SHIFT_2)) * _MIX_2
    mixed: npt.NDArray[np.uint64] = state ^ (state >> _SHIFT_3)
    return mixed


def sample(
    logits_BV: torch.Tensor, temperature_B: torch.Tensor, uniform_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64[B] and their logprobs float32[B] under softmax(logits / temperature).

    NaN logits give some id of the vocabulary with a NaN logprob, which the client refuses.
    """
    logprobs_BV = torch.log_softmax(logits_BV.float() / temperature_B[:, None], dim=-1)
    # Float64: u * total < total strictly, so the draw never falls behind the last token with any mass.
    cdf_BV = logprobs_BV.double().exp_().cumsum_(dim=-1)
    target_B1 = uniform_B[:, None] * cdf_BV[:, -1:]
    ids_B = (cdf_BV <= target_B1).sum(dim=-1).clamp_(max=logits_BV.shape[-1] - 1)
    return ids_B, logprobs_BV.gather(1, ids_B[:, None])[:, 0]
