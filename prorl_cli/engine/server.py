"""The embedded engine's HTTP: `POST /inference/v1/generate` and `GET /health`, behind the gate.

Refuses with 400 what it cannot serve exactly as asked. A client that disconnects aborts its request.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from prorl_cli.engine.decoder import Completion, DecodeRequest
from prorl_cli.engine.protocol import (
    GENERATE_PATH,
    Choice,
    GenerateAnswer,
    GenerateBody,
    Logprobs,
    TokenLogprob,
    Usage,
    WeightSpan,
)
from prorl_cli.engine.thread import DecodeThread, EngineDown
from prorl_cli.wire.server import Receive, Scope, Send


def routes(thread: DecodeThread, max_model_len: int) -> list[Route]:
    """What the embedded engine serves, for `Role.serve`."""

    async def health(request: Request) -> Response:
        return PlainTextResponse("ok")

    generate = _Generate(thread, max_model_len)
    return [Route(GENERATE_PATH, generate, methods=["POST"]), Route("/health", health)]


class _Generate:
    """A bare ASGI app: it must go on listening for a disconnect while it works."""

    def __init__(self, thread: DecodeThread, max_model_len: int) -> None:
        self._thread = thread
        self._max_model_len = max_model_len

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = msgspec.json.decode(await Request(scope, receive).body(), type=GenerateBody)
            request = admit(body, self._max_model_len)
        except ClientDisconnect:
            return
        except (msgspec.DecodeError, ValueError) as error:
            await _json(400, {"error": str(error)})(scope, receive, send)
            return
        response = await self._serve(body, request, receive)
        if response is not None:
            await response(scope, receive, send)

    async def _serve(self, body: GenerateBody, request: DecodeRequest, receive: Receive) -> Response | None:
        """The answer; None when the client left first."""
        generating = asyncio.ensure_future(self._thread.generate(request))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({generating, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return _json(200, answer_for(body, generating.result())) if generating.done() else None
        except EngineDown as error:
            return _json(503, {"error": str(error)})
        finally:
            generating.cancel()
            leaving.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def admit(body: GenerateBody, max_model_len: int) -> DecodeRequest:
    """What the decoder is asked to do; ValueError says what cannot be served. `max_tokens` is cut to the room left."""
    wanted, prompt = body.sampling_params, len(body.token_ids)
    if not 0 < prompt < max_model_len:
        raise ValueError(f"the prompt has {prompt} tokens; this engine takes 1 to {max_model_len - 1}")
    if wanted.max_tokens < 1:
        raise ValueError("max_tokens must be at least 1")
    if not (wanted.temperature > 0 and math.isfinite(wanted.temperature)):
        raise ValueError("temperature must be positive: logprobs are of the distribution sampled from")
    if wanted.n != 1 or wanted.logprobs != 0:
        raise ValueError("only n: 1 and logprobs: 0 (the sampled token's) are served")
    return DecodeRequest(
        token_ids=body.token_ids,
        max_tokens=min(wanted.max_tokens, max_model_len - prompt),
        temperature=wanted.temperature,
        seed=secrets.randbits(64) if wanted.seed is None else wanted.seed,
        stop_ids=frozenset(wanted.stop_token_ids),
    )


def answer_for(body: GenerateBody, done: Completion) -> GenerateAnswer:
    """The HTTP answer to a completion; a NaN logprob becomes null in JSON."""
    pairs = zip(done.token_ids, done.logprobs, strict=True)
    choice = Choice(
        token_ids=done.token_ids,
        finish_reason=done.finish_reason,
        stop_reason=done.token_ids[-1] if done.finish_reason == "stop" else None,
        logprobs=Logprobs([TokenLogprob(token, logprob) for token, logprob in pairs]),
        weight_versions=[WeightSpan(str(version), start, end) for version, start, end in done.spans],
    )
    usage = Usage(prompt_tokens=len(body.token_ids), completion_tokens=len(done.token_ids))
    return GenerateAnswer(request_id=body.request_id, choices=[choice], usage=usage)


def _json(status: int, content: Any) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")
