"""`generate`: one request to one engine, and the refusal of every answer that must not be trained on.

Fails closed: an answer that lacks logprobs, holds NaN, or whose parts disagree is an `InfraError`, never a guess.
Called by the agent's policy, with a lease; retries are its affair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from prorl_cli.engine.protocol import GENERATE_PATH, Choice, GenerateAnswer
from prorl_cli.errors import InfraError
from prorl_cli.trajectory import ErrorClass, VersionSpan
from prorl_cli.wire import Client, Refused, WireError

OUR_FAULT = (400, 413, 422)
"""Statuses of a request that no other engine would accept either: retrying it elsewhere spreads the harm."""

LOGPROB_FLOOR = -9000.0
"""vLLM clamps a NaN logprob to -9999."""

LOGPROB_CEILING = 1e-3
"""A logprob may exceed 0 by rounding only (`trajectory.check_sequence` draws the same line)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Continue `token_ids` by at most `max_tokens`; the same seed, prompt and weights give the same tokens."""

    request_id: str
    token_ids: list[int]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()

    def body(self) -> dict[str, object]:
        """As vLLM's token API wants it."""
        sampling = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stop_token_ids": list(self.stop_token_ids),
            "logprobs": 0,
            "n": 1,
        }
        return {"request_id": self.request_id, "token_ids": self.token_ids, "sampling_params": sampling}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What the policy wrote: ids, their logprobs, version spans over them, and `stop` or `length`."""

    token_ids: list[int]
    logprobs: list[float]
    spans: tuple[VersionSpan, ...]
    finish_reason: str


async def generate(client: Client, engine_url: str, request: GenerateRequest, deadline_s: float) -> Generation:
    """One generation. `InfraError` of class `engine` when the engine gave no usable answer, of class `internal`
    when it refused the request itself. Cancelling this coroutine aborts the request in the engine."""
    url = engine_url + GENERATE_PATH
    try:
        answer = await client.call("POST", url, request.body(), deadline_s=deadline_s)
        parsed = msgspec.convert(answer, GenerateAnswer)
    except Refused as error:
        blame = ErrorClass.INTERNAL if error.status in OUR_FAULT else ErrorClass.ENGINE
        raise InfraError(blame, str(error)) from error
    except (WireError, msgspec.ValidationError) as error:
        raise InfraError(ErrorClass.ENGINE, f"{url}: {error}") from error
    if mistakes := check_answer(parsed, request):
        raise InfraError(ErrorClass.ENGINE, f"{url} gave an unusable answer: {'; '.join(mistakes)}")
    return _generation(parsed.choices[0])


def check_answer(answer: GenerateAnswer, request: GenerateRequest) -> list[str]:
    """Everything that forbids using an answer, in words; empty when it may be trained on."""
    if len(answer.choices) != 1:
        return [f"{len(answer.choices)} choices instead of 1"]
    choice = answer.choices[0]
    found = _check_end(choice, request) + _check_logprobs(choice) + _check_spans(choice)
    # vLLM prefixes the id with the endpoint's name.
    if not answer.request_id.endswith(request.request_id):
        found.append(f"it answers request {answer.request_id!r}, not {request.request_id!r}")
    return found


def _check_end(choice: Choice, request: GenerateRequest) -> list[str]:
    ids, reason = choice.token_ids, choice.finish_reason
    if reason not in ("stop", "length"):
        return [f"it ended by {reason!r} after {len(ids)} tokens"]
    if not 1 <= len(ids) <= request.max_tokens:
        return [f"{len(ids)} tokens where 1 to {request.max_tokens} were asked for"]
    stopped = [position for position, token in enumerate(ids) if token in request.stop_token_ids]
    if stopped != ([len(ids) - 1] if reason == "stop" else []):
        return [f"it ended by {reason!r} with stop tokens at {stopped} of {len(ids)}"]
    return []


def _check_logprobs(choice: Choice) -> list[str]:
    if choice.logprobs is None:
        return ["no logprobs"]
    content = choice.logprobs.content
    if [entry.token_id for entry in content] != choice.token_ids:
        return [f"{len(content)} logprobs that do not belong to its {len(choice.token_ids)} tokens"]
    return [] if all(_usable(entry.logprob) for entry in content) else ["a logprob is missing, NaN or out of range"]


def _usable(logprob: float | None) -> bool:
    return logprob is not None and math.isfinite(logprob) and LOGPROB_FLOOR < logprob <= LOGPROB_CEILING


def _check_spans(choice: Choice) -> list[str]:
    covered = 0
    for span in choice.weight_versions or ():
        if span.start != covered or span.end <= span.start or not span.version.isdecimal():
            return [f"weight version span {span.version!r} {span.start}:{span.end} does not continue at {covered}"]
        covered = span.end
    if covered != len(choice.token_ids):
        return [f"weight versions cover {covered} of {len(choice.token_ids)} tokens"]
    return []


def _generation(choice: Choice) -> Generation:
    assert choice.logprobs is not None and choice.weight_versions is not None
    return Generation(
        token_ids=choice.token_ids,
        logprobs=[entry.logprob for entry in choice.logprobs.content if entry.logprob is not None],
        spans=tuple(
            VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in choice.weight_versions
        ),
        finish_reason=choice.finish_reason,
    )
