"""The authenticated client: one connection pool a process, environment proxies ignored, a deadline a call.

It speaks only to whoever proves to hold the run's key, before it says a word: an endpoint may outlive its process, and
the port may be anybody's by then.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from prorl_cli.errors import ProrlError

CONNECT_S = 5.0
"""Longest wait for a TCP connection: peers are one hop away."""


class WireError(ProrlError):
    """A call to a peer that brought no usable answer."""


class Unreachable(WireError):
    """Nobody of this run answered: refused, reset, gone, or a stranger on its port."""


class TimedOut(WireError):
    """The peer did not answer within the call's deadline."""


class Refused(WireError):
    """The peer answered with an HTTP status of 300 or more: no listener of a run sends its callers elsewhere."""

    def __init__(self, status: int, text: str, url: str) -> None:
        super().__init__(f"{url} answered {status}: {text[:300]}")
        self.status = status
        self.text = text


def pinned(certificate: Path) -> ssl.SSLContext:
    """Trust in exactly this certificate, whatever host shows it; `WireError` where it cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    try:
        context.load_verify_locations(cafile=certificate)
    except OSError as error:
        raise WireError(f"cannot read the run's certificate {certificate}: {error}") from error
    return context


class Client:
    """`async with Client(token, certificate) as client: await client.call("POST", url, body, deadline_s=5)`."""

    def __init__(self, token: str, certificate: Path) -> None:
        self._context = pinned(certificate)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ssl=self._context)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(self, method: str, url: str, body: Any = None, *, deadline_s: float) -> Any:
        """The decoded JSON answer; `Unreachable`, `TimedOut` or `Refused` otherwise."""
        if self._session is None:
            raise RuntimeError("Client used outside `async with`")
        if not url.startswith("https://"):
            raise Unreachable(f"{url} is no listener of a run: it does not speak TLS")
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(deadline_s):
                return await self._exchange(self._session, method, url, data)
        except TimeoutError:
            raise TimedOut(f"{url} did not answer within {deadline_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{url} is unreachable: {error or type(error).__name__}") from error

    @staticmethod
    async def _exchange(session: aiohttp.ClientSession, method: str, url: str, data: bytes | None) -> Any:
        async with session.request(method, url, data=data, allow_redirects=False) as answer:
            content = await answer.read()
        if answer.status >= 300:
            raise Refused(answer.status, content.decode(errors="replace"), url)
        try:
            return msgspec.json.decode(content) if content else None
        except msgspec.DecodeError as error:
            raise Refused(answer.status, f"not JSON: {error}", url) from error
