"""Pure decisions of the learner: who died on a position, which weights stay, what a new lineage is called."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable

from prorl_cli.spool.evals import Evaluation
from prorl_cli.spool.members import Endpoint, Obituary

_ORDERLY = (0, 2, 3)
"""Exit codes of a process that did not die of its work: done, refused by its input or its disk, stopped or fenced."""


def deaths(endpoints: Iterable[Endpoint], obituaries: dict[str, Obituary], own: str) -> Counter[int]:
    """Learners other than `own` that died, by the position each had announced before touching its records.

    One learner runs at a time, so one that neither announced its end nor ended in order is dead.
    """
    return Counter(
        e.step for e in endpoints if e.role == "learner" and e.incarnation != own and e.step > 0
        and e.state != "ended" and not _orderly(obituaries.get(e.incarnation))
    )  # fmt: skip


def _orderly(obituary: Obituary | None) -> bool:
    return obituary is not None and obituary.code in _ORDERLY


def weights_to_keep(
    newest: int,
    max_staleness: int,
    loaded: Iterable[int],
    pinned: Iterable[int],
    evaluations: dict[int, Evaluation],
) -> set[int]:
    """Versions that stay: 0, the newest max_staleness + 2, those `loaded` in live engines, those `pinned` by the
    reference and by checkpoints, and the best evaluated one (the newest of equals)."""
    recent = range(max(0, newest - max_staleness - 1), newest + 1)
    best = max(evaluations, key=lambda version: (evaluations[version].pass_at_1, version), default=0)
    return {0, best, *recent, *loaded, *pinned}


def next_lineage(current: str) -> str:
    """A name never used before, `<ordinal>-<hex>`, that readers prefer to `current`."""
    ordinal = int(current.split("-")[0]) if current else 0
    return f"{ordinal + 1}-{secrets.token_hex(4)}"
