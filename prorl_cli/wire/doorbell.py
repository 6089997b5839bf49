"""The doorbell: whoever wrote something rings, and readers that hold a long-poll wake at once.

A ring carries nothing but its number; the reader then looks at the files. A missed ring costs one slow poll.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prorl_cli.wire.client import Client, WireError

if TYPE_CHECKING:  # a login node checks recipes without it
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

HOLD_S = 20.0
"""How long a long-poll is held; below the idle limits of common connection trackers."""


class Doorbell:
    """Counts rings and lets any number of long-polls wait for the next one."""

    def __init__(self) -> None:
        self._rings = 0
        self._next = asyncio.Event()
        self._closed = False

    def close(self) -> None:
        """Send every listener away, now and from now on: its server is about to stop."""
        self._closed = True
        self.ring()

    def ring(self) -> None:
        """Wake every waiting reader. Only from the event loop's thread."""
        self._rings += 1
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, since: int, hold_s: float) -> int:
        """The number of rings, as soon as it differs from `since`, or after `hold_s` seconds."""
        if self._rings == since and not self._closed:
            try:
                async with asyncio.timeout(hold_s):
                    await self._next.wait()
            except TimeoutError:
                pass
        return self._rings

    async def _answer(self, request: Request) -> JSONResponse:
        from starlette.responses import JSONResponse

        since = int(request.query_params.get("since", "-1"))
        rings = await self.wait(since, HOLD_S)
        return JSONResponse({"rings": rings}, status_code=503 if self._closed else 200)

    def route(self) -> Route:
        """`GET /doorbell?since=N`."""
        from starlette.routing import Route

        return Route("/doorbell", self._answer)


async def listen(client: Client, url: str, wake: asyncio.Event) -> None:
    """Set `wake` at every ring of the doorbell at `url`; returns when the peer can no longer be reached."""
    rings = -1
    while True:
        try:
            answer = await client.call("GET", f"{url}/doorbell?since={rings}", deadline_s=HOLD_S + 10)
            rings = int(answer["rings"])
        except (WireError, KeyError, TypeError, ValueError):
            return
        wake.set()
