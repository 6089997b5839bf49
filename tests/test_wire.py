"""Calls between processes carry a token, keep their deadline, ignore proxies; a doorbell wakes its readers at once."""

import asyncio
import time

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from prorl_cli.wire import Doorbell, Refused, TimedOut, Unreachable, listen
from prorl_cli.wire.server import Guard
from tests import tls

TOKEN = "a-token"


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"got": await request.json()})


async def slow(request: Request) -> JSONResponse:
    await asyncio.sleep(30)
    return JSONResponse({})


async def broken(request: Request) -> PlainTextResponse:
    return PlainTextResponse("not json")


ROUTES = [Route("/echo", echo, methods=["POST"]), Route("/slow", slow), Route("/broken", broken)]


def exchange(body, *, token=TOKEN, extra=()):
    async def run():
        server = tls.server(Guard(Starlette(routes=[*ROUTES, *extra]), TOKEN))
        url = await server.start()
        try:
            async with tls.client(token) as client:
                return await body(client, url)
        finally:
            await server.stop()

    return asyncio.run(run())


def test_a_call_brings_the_decoded_answer():
    answer = exchange(lambda client, url: client.call("POST", f"{url}/echo", {"a": [1, 2]}, deadline_s=5))
    assert answer == {"got": {"a": [1, 2]}}


@pytest.mark.parametrize("path", ["/echo", "/doorbell", "/nowhere", "/"])
def test_every_path_refuses_a_caller_without_the_token(path):
    async def body(client, url):
        with pytest.raises(Refused) as caught:
            await client.call("GET", url + path, deadline_s=5)
        return caught.value.status

    assert exchange(body, token="another") == 401


def test_a_slow_peer_costs_no_more_than_the_deadline():
    async def body(client, url):
        start = time.monotonic()
        with pytest.raises(TimedOut, match=r"within 0\.2 s"):
            await client.call("GET", f"{url}/slow", deadline_s=0.2)
        return time.monotonic() - start

    assert exchange(body) < 2


def test_an_answer_that_is_not_json_is_refused():
    async def body(client, url):
        with pytest.raises(Refused, match="not JSON"):
            await client.call("GET", f"{url}/broken", deadline_s=5)

    exchange(body)


def test_a_dead_peer_is_unreachable_at_once():
    async def body(client, url):
        with pytest.raises(Unreachable):
            await client.call("GET", "https://127.0.0.1:9/", deadline_s=5)

    exchange(body)


def test_the_environment_s_proxies_are_ignored(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert exchange(lambda client, url: client.call("POST", f"{url}/echo", {}, deadline_s=5)) == {"got": {}}


def test_a_ring_wakes_every_listener_within_milliseconds_and_none_is_missed():
    doorbell = Doorbell()

    async def body(client, url):
        wakes = [asyncio.Event() for _ in range(20)]
        listeners = [asyncio.create_task(listen(client, url, wake)) for wake in wakes]
        for _ in range(5):
            await asyncio.wait_for(asyncio.gather(*(wake.wait() for wake in wakes)), 5)
            for wake in wakes:
                wake.clear()
            doorbell.ring()
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)

    start = time.monotonic()
    exchange(body, extra=[doorbell.route()])
    assert time.monotonic() - start < 10


def test_a_listener_returns_when_its_peer_is_gone():
    async def run():
        doorbell = Doorbell()
        server = tls.server(Starlette(routes=[doorbell.route()]))
        url = await server.start()
        async with tls.client(TOKEN) as client:
            wake = asyncio.Event()
            listening = asyncio.create_task(listen(client, url, wake))
            await asyncio.wait_for(wake.wait(), 5)
            doorbell.close()
            await server.stop()
            await asyncio.wait_for(listening, 5)

    asyncio.run(run())
