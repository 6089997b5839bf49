"""One append-only token sequence under construction: prompt, authored turns and tool outputs, in order.

What is in it never changes: turn k+1's prompt is the exact ids so far. An authored piece whose parts disagree is
refused as the engine's failure, so that nothing unusable reaches a record.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from prorl_cli.errors import InfraError
from prorl_cli.trajectory import ErrorClass, Sequence, VersionSpan, check_sequence

_ANY_VOCABULARY = 2**32


class Authored(Protocol):
    """What a policy wrote (`engine.client.Generation`); `spans` count from its own first token."""

    @property
    def token_ids(self) -> Seq[int]: ...
    @property
    def logprobs(self) -> Seq[float]: ...
    @property
    def spans(self) -> Seq[VersionSpan]: ...


class SequenceBuilder:
    """Starts as a prompt; `author` and `insert` append."""

    def __init__(self, prompt: Seq[int]) -> None:
        self.ids = list(prompt)
        self._mask = [0] * len(self.ids)
        self._logprobs = [0.0] * len(self.ids)
        self._spans: list[VersionSpan] = []

    def __len__(self) -> int:
        return len(self.ids)

    def author(self, piece: Authored) -> None:
        """Append what the policy wrote; `InfraError(engine)` when it is empty or its parts disagree."""
        ones = [1] * len(piece.token_ids)
        wrong = check_sequence(Sequence.pack(piece.token_ids, ones, piece.logprobs, piece.spans), _ANY_VOCABULARY)
        if wrong or not ones:
            raise InfraError(ErrorClass.ENGINE, "; ".join(wrong) or "an empty generation")
        at = len(self.ids)
        self.ids += piece.token_ids
        self._mask += ones
        self._logprobs += piece.logprobs
        for span in piece.spans:
            self._spans.append(VersionSpan(version=span.version, start=at + span.start, end=at + span.end))

    def insert(self, ids: Seq[int]) -> None:
        """Append ids that the policy did not author."""
        self.ids += ids
        self._mask += [0] * len(ids)
        self._logprobs += [0.0] * len(ids)

    def build(self) -> tuple[Sequence, ...]:
        """The sequence, without what follows the last authored token; nothing when the policy authored nothing."""
        if 1 not in self._mask:
            return ()
        end = len(self._mask) - self._mask[::-1].index(1)
        return (Sequence.pack(self.ids[:end], self._mask[:end], self._logprobs[:end], self._spans),)
