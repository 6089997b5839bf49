"""A stand-in for an engine that speaks its HTTP: `/gate` and `/inference/v1/generate`, with a script instead of a model.

It writes the tiny model's language: a calculator call where the prompt ends a question, an answer where it ends a
result. `POST /script {field: value}` changes its behaviour, `GET /script` counts what happened. It runs inside a test
(`app()`) or as a process of a run: `SCRIPT={...} python -m tests.scripted_engine RUN_DIR`.
"""

import asyncio
import json
import os
from dataclasses import asdict, dataclass, field, fields

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prorl_cli.agent.tiny import ASSISTANT, CALL, END, ENDCALL, VOCAB_SIZE, encode

TICK_S = 0.01


@dataclass
class ScriptedEngine:
    """The script and its counters."""

    version: int = 0
    state: str = "ready"
    token_s: float = 0.0
    """Seconds per generated token."""
    hang: bool = False
    """Take requests and never answer."""
    fail: bool = False
    """Answer 500."""
    die_after: int = -1
    """Exit the process in the middle of this many more requests."""
    call: str = "1 + 2"
    answer: str = "3"
    started: int = 0
    served: int = 0
    aborted: int = 0
    in_flight: int = 0
    tokens: int = 0
    most: int = 0
    """Most requests at once."""
    seeds: list = field(default_factory=list)

    def app(self):
        return Starlette(routes=self.routes())

    def routes(self):
        return [
            Route("/gate", self.gate),
            Route("/script", self.script, methods=["GET", "POST"]),
            Route("/inference/v1/generate", self.generate, methods=["POST"]),
        ]

    async def gate(self, request):
        return JSONResponse(
            {
                "state": self.state, "version": self.version, "in_flight_requests": self.in_flight,
                "in_flight_tokens": 64 * self.in_flight, "tokens_total": self.tokens, "busy_s": 0.0,
                "tokens_per_s": 0.0, "vocab_size": VOCAB_SIZE, "max_model_len": 4096,
            }
        )  # fmt: skip

    async def script(self, request):
        if request.method == "POST":
            for name, value in (await request.json()).items():
                assert name in {f.name for f in fields(self)}
                setattr(self, name, value)
        return JSONResponse(asdict(self))

    async def generate(self, request):
        body = await request.json()
        self.started += 1
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        self.seeds.append(body["sampling_params"]["seed"])
        version = self.version
        try:
            ids = self.turn(body["token_ids"])[: body["sampling_params"]["max_tokens"]]
            if self.fail:
                return Response("scripted failure", status_code=500)
            if not await self.work(request, len(ids)):
                self.aborted += 1
                return Response(status_code=499)
        finally:
            self.in_flight -= 1
        self.served += 1
        self.tokens += len(ids)
        return JSONResponse(answer(body, ids, version))

    async def work(self, request, tokens):
        """Take the time of `tokens`; False when the client has gone."""
        left = tokens * self.token_s
        if self.die_after >= 0:
            self.die_after -= 1
            if self.die_after < 0:
                os._exit(9)
        while left > 0 or self.hang:
            await asyncio.sleep(TICK_S)
            left -= TICK_S
            if await request.is_disconnected():
                return False
        return True

    def turn(self, prompt):
        if prompt[-1] == ASSISTANT and self.call:
            return [CALL, *encode(self.call), ENDCALL]
        return [*encode(self.answer), END]


def answer(body, ids, version):
    stops = body["sampling_params"]["stop_token_ids"]
    stopped = ids[-1] in stops
    return {
        "request_id": body["request_id"],
        "choices": [
            {
                "index": 0,
                "token_ids": ids,
                "finish_reason": "stop" if stopped else "length",
                "stop_reason": ids[-1] if stopped else None,
                "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in ids]},
                "weight_versions": [{"version": str(version), "start": 0, "end": len(ids)}],
            }
        ],
        "usage": {"prompt_tokens": len(body["token_ids"]), "completion_tokens": len(ids)},
    }


async def body(role):
    engine = ScriptedEngine(**json.loads(os.environ.get("SCRIPT", "{}")))
    await role.serve(engine.routes())
    role.announce(state="ready", version=0)
    await role.stopping.wait()


if __name__ == "__main__":
    from prorl_cli.role import main

    main("engine", body)
