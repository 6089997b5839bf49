"""The calls to a vLLM server that starting, swapping and draining are made of, each with its deadline.

Answers of HTTP 200 are not believed where vLLM gives them for failures too. Called by `vllm`.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from prorl_cli.engine.gate import GateState
from prorl_cli.engine.swap import Unproved
from prorl_cli.spool.canary import Canary, distance
from prorl_cli.wire import Client, TimedOut, Unreachable

CALL_S = 60.0
"""Calls that its HTTP side answers alone, or with a word to the engine: milliseconds, unless the machine is starved,
and then another minute is cheaper than another start."""

WORK_S = 900.0
"""Calls that end only after the engine has worked: a reload of the largest models, a canary in a full batch."""

ALIVE_S = 120.0
"""A step may be long (a full prefill, a first compilation); one this long is a hang."""

START_S = 1800.0
"""A server of the largest models loads and compiles for many minutes."""

UP_POLL_S = 0.25

AHEAD = -1
"""Priority of the canary: before every request that waits."""

LEAD_S = 0.05
"""What the canary gets to join the queue of the paused engine. Too late, it waits for a slot: slower, not wrong."""

EXACT, ROUGH = 1e-3, 0.25
"""Nats, mean over the canary: float32 on both sides differs by rounding (about 1e-6 was seen); half precision is far
from the publisher's float32 by its nature, and there the canary catches only garbage."""


class Api:
    """One server's. `client` has the data token (for GET), `admin` the other one."""

    def __init__(self, client: Client, admin: Client, url: str, *, exact: bool, room: int) -> None:
        self._client = client
        self._admin = admin
        self._url = url
        self._tolerance = EXACT if exact else ROUGH
        self._room = room

    async def gate(self) -> dict[str, Any]:
        """What the gate says."""
        answer: dict[str, Any] = await self._client.call("GET", f"{self._url}/gate", deadline_s=CALL_S)
        return answer

    async def up(self, stopping: asyncio.Event) -> bool:
        """Whether the server listens, once it does: it has loaded its weights by then. False when `stopping` first."""
        until = time.monotonic() + START_S
        while not stopping.is_set():
            try:
                await self.gate()
                return True
            except (Unreachable, TimedOut):
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(UP_POLL_S)
        return False

    async def alive(self) -> None:
        """A call that does nothing, all the way to every worker and back."""
        await self._post("collective_rpc", {"method": "check_health"}, ALIVE_S)

    async def move(self, state: GateState, version: int) -> None:
        """What the gate is to say and do from now on."""
        await self._post("gate/state", {"state": state, "version": version})

    async def drain(self) -> None:
        """Take nothing new."""
        await self._post("gate/drain")

    async def reload(self, version: int, folder: Path) -> None:
        """Pause between two steps and load `folder`; the engine stays paused, its caches empty."""
        await self._post("pause?mode=keep&clear_cache=false", deadline_s=WORK_S)
        arguments = {"weights_path": str(folder), "is_checkpoint_format": True}
        await self._post("collective_rpc", {"method": "reload_weights", "kwargs": arguments}, WORK_S)
        reset = await self._post("reset_prefix_cache?reset_running_requests=true", deadline_s=WORK_S)
        if not (isinstance(reset, dict) and reset.get("success") is True):
            raise Unproved(f"the prefix cache was not reset: {reset}")
        await self.label(version)

    async def label(self, version: int) -> None:
        """The name of what is loaded, in every answer's spans."""
        await self._post("update_weight_version", {"new_version": str(version)})

    async def prove(self, canary: Canary, *, resume: bool = False) -> None:
        """Raise `Unproved` unless the engine computes what the publisher computed; `resume` lets it run for that."""
        scoring = asyncio.ensure_future(self._score(canary))
        try:
            if resume:
                await asyncio.wait({scoring}, timeout=LEAD_S)
                await self._post("resume")
            found = distance(canary, await scoring)
        finally:
            scoring.cancel()
        # Written so that NaN is refused.
        if not found <= self._tolerance:
            raise Unproved(f"the canary is {found:.3g} nats off, {self._tolerance:g} are allowed")

    async def _score(self, canary: Canary) -> list[float]:
        tokens = canary.token_ids[: self._room]
        body = {
            "prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "priority": AHEAD,
            "return_tokens_as_token_ids": True,
        }  # fmt: skip
        answer = await self._post("v1/completions", body, WORK_S)
        try:
            scored = answer["choices"][0]["prompt_logprobs"][1:]
            return [float(entry[str(token)]["logprob"]) for entry, token in zip(scored, tokens[1:], strict=True)]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Unproved(f"the canary's answer lacks its logprobs: {error!r}") from error

    async def _post(self, path: str, body: Any = None, deadline_s: float = CALL_S) -> Any:
        return await self._admin.call("POST", f"{self._url}/{path}", body, deadline_s=deadline_s)
