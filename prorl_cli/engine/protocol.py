"""The JSON of `POST /inference/v1/generate`, in vLLM's own field names. Shared by the embedded server and the client.

Requests refuse unknown fields: a sampling parameter that this engine ignored would bias every ratio downstream.
Answers do not: vLLM adds fields of its own.
"""

from __future__ import annotations

import msgspec

GENERATE_PATH = "/inference/v1/generate"
"""vLLM's token-in, token-out path."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to sample. `logprobs: 0` = of the sampled token, the only thing served; a missing seed is drawn at random."""

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int = 0
    n: int = 1


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request. `cache_salt` is vLLM's; the embedded engine reuses prefixes by their ids and version alone."""

    request_id: str
    token_ids: list[int]
    sampling_params: SamplingParams
    cache_salt: str | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    """One sampled token and the logprob of the distribution it was sampled from; null when that was NaN."""

    token_id: int
    logprob: float | None


class Logprobs(msgspec.Struct, frozen=True):
    """One entry per generated token."""

    content: list[TokenLogprob]


class WeightSpan(msgspec.Struct, frozen=True):
    """Generated tokens `start:end` came from the weights named `version`."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one completion; `finish_reason` is stop, length or abort; the stop token is part of `token_ids`."""

    index: int = 0
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None = None
    logprobs: Logprobs | None = None
    weight_versions: list[WeightSpan] | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    request_id: str
    choices: list[Choice]
    usage: Usage | None = None
