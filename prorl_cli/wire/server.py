"""The server side: uvicorn in the process's own loop, on a free port, TLS, every path behind a bearer token."""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

from prorl_cli.wire.address import family, in_url

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEEP_ALIVE_S = 120
"""Longer than a client's pool keeps a connection, so that the server never closes one that is being reused."""

GRACE_S = 1
"""What a stopping server gives its open requests."""


def bearer(scope: Scope) -> str:
    """The bearer token of a request, or an empty string."""
    for name, value in scope.get("headers", ()):
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return str(value[7:].decode("latin-1"))
    return ""


def same_token(given: str, expected: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


async def answer(send: Send, status: int, text: str) -> None:
    """A short JSON answer outside any framework."""
    body = b'{"error": "' + text.encode() + b'"}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def unauthorized(send: Send) -> None:
    """What a stranger is told: nothing."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class Guard:
    """Pure ASGI middleware: 401 for every request, whatever its path, that lacks the token."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not same_token(bearer(scope), self._token):
            await unauthorized(send)
            return
        await self._app(scope, receive, send)


def shown(certificate: Path, key: Path) -> ssl.SSLContext:
    """The server's side of `client.pinned`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Callers keep their connections, so nobody resumes a session.
    context.num_tickets = 0
    context.load_cert_chain(certificate, key)
    return context


class Server:
    """One listener of this process, on one address."""

    def __init__(self, app: App, host: str, certificate: Path, key: Path) -> None:
        self._host = host
        # Any stranger can provoke uvicorn's warnings, and so fill a disk with them.
        config = uvicorn.Config(
            app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S, ws="none", server_header=False,
        )  # fmt: skip
        config.load()
        config.ssl = shown(certificate, key)
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Bind a free port, serve, and return the URL."""
        listener = socket.create_server((self._host, 0), family=family(self._host), backlog=2048)
        # Accepted sockets inherit it; without it every answer waits 40 ms for the client's delayed ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._serve(listener))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.001)
        return f"https://{in_url(self._host)}:{port}"

    async def _serve(self, listener: socket.socket) -> None:
        # `_serve` skips uvicorn's own signal handlers: signals belong to the role.
        await self._server._serve(sockets=[listener])

    async def stop(self) -> None:
        """Close the listener; open requests have `GRACE_S` to end (ring the doorbells first)."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
