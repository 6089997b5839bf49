"""`score`: what an answer is worth. Runs in the verifier's process, never in the worker's.

A verifier that raises says nothing about the answer: it is the verifier's error.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

from prorl_cli.tasks.answers import as_number, same_text
from prorl_cli.tasks.reasoning import open_dataset


def score(*, answer: str, wanted: str, payload: dict[str, Any]) -> float:
    """The reward of `answer` for an item whose right answer is `wanted`, by `payload["verifier"]`."""
    match payload["verifier"]:
        case "exact":
            return float(same_text(answer, wanted))
        case "number":
            given = as_number(answer)
            return float(given is not None and given == as_number(wanted))
        case "math":
            return float(_same_mathematics(answer, wanted))
        case "reasoning_gym":
            return _reasoning_gym(answer, payload)
    raise ValueError(f"there is no verifier {payload['verifier']!r}")


def warm() -> None:
    """Import what `score` needs, so that the first call is as fast as any."""
    import reasoning_gym  # noqa: F401


def _same_mathematics(answer: str, wanted: str) -> bool:
    from math_verify import parse, verify

    # The deadline of the verifier's process stands in for the package's own, which needs signals.
    right, given = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (wanted, answer))
    if not right:
        raise ValueError(f"math-verify cannot read the right answer {wanted!r}")
    return bool(verify(right, given, timeout_seconds=None))


def _reasoning_gym(answer: str, payload: dict[str, Any]) -> float:
    dataset = _dataset(payload["dataset"], json.dumps(payload["options"], sort_keys=True))
    reward = float(dataset.score_answer(answer, entry=payload["entry"]))
    if not math.isfinite(reward):
        raise ValueError(f"score_answer gave {reward}")
    return reward


@lru_cache(maxsize=64)
def _dataset(name: str, options: str) -> Any:
    return open_dataset(name, json.loads(options))
