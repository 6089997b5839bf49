"""Only who holds the run's key is spoken to, only TLS is spoken, and connections are kept."""

import asyncio
import socket
import ssl
import subprocess
import sys

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Route

from prorl_cli.wire import Client, Refused, Unreachable, WireError
from prorl_cli.wire.certificate import make
from prorl_cli.wire.server import Guard, Server
from tests import tls
from tests.impostors import Impostor, foreign

TOKEN = "a-token-of-the-run"


async def peer(request: Request) -> JSONResponse:
    return JSONResponse({"port": request.client.port})


async def elsewhere(request: Request) -> RedirectResponse:
    return RedirectResponse("https://127.0.0.1:9/")


APP = Guard(Starlette(routes=[Route("/peer", peer), Route("/elsewhere", elsewhere)]), TOKEN)


def exchange(body, *, host="127.0.0.1", client=None):
    async def run():
        server = Server(APP, host, *tls.pair())
        url = await server.start()
        try:
            async with client or tls.client(TOKEN) as mine:
                return await body(mine, url)
        finally:
            await server.stop()

    return asyncio.run(run())


async def get(client, url):
    return await client.call("GET", url, deadline_s=5)


def test_an_impostor_without_the_run_s_key_hears_no_token():
    with Impostor(certificate=foreign()) as impostor:

        async def run():
            async with tls.client(TOKEN) as client:
                with pytest.raises(Unreachable, match="certificate"):
                    await get(client, f"{impostor.url}/gate")

        asyncio.run(run())
    assert impostor.heard == b""


def test_an_impostor_hears_everything_from_a_client_that_trusts_it():
    theirs = foreign()
    with Impostor(certificate=theirs) as impostor:

        async def run():
            async with Client(TOKEN, theirs[0]) as client:
                assert await get(client, f"{impostor.url}/gate") == {}

        asyncio.run(run())
    assert TOKEN.encode() in impostor.heard


def test_a_listener_without_tls_hears_no_token():
    with Impostor() as impostor:

        async def run():
            async with tls.client(TOKEN) as client:
                with pytest.raises(Unreachable):
                    await get(client, f"{impostor.url}/gate")
                with pytest.raises(Unreachable, match="does not speak TLS"):
                    await get(client, f"http://127.0.0.1:{impostor.port}/gate")
                assert impostor.accepted == 1

        asyncio.run(run())
    assert impostor.heard and TOKEN.encode() not in impostor.heard and b"HTTP" not in impostor.heard


def test_a_client_that_pins_another_run_s_certificate_reaches_nobody():
    async def body(client, url):
        with pytest.raises(Unreachable, match="certificate"):
            await get(client, f"{url}/peer")

    exchange(body, client=Client(TOKEN, foreign()[0]))


def test_a_listener_speaks_tls_1_3_only_and_answers_nothing_in_plain_text():
    async def body(_, url):
        return await asyncio.to_thread(strangers, int(url.rpartition(":")[2]))

    old, plain = exchange(body)
    assert old == "refused" and not plain.startswith(b"HTTP")


def strangers(port):
    """What a client of TLS 1.2 and one without TLS get."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        try:
            context.wrap_socket(raw).close()
            old = "served"
        except (ssl.SSLError, OSError):
            old = "refused"
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            return old, raw.recv(1000)
        except OSError:
            return old, b""


def test_calls_one_after_another_share_one_connection():
    async def body(client, url):
        return {(await get(client, f"{url}/peer"))["port"] for _ in range(20)}

    assert len(exchange(body)) == 1


def test_a_redirect_is_refused_and_not_followed():
    async def body(client, url):
        with pytest.raises(Refused) as refused:
            await get(client, f"{url}/elsewhere")
        return refused.value.status

    assert exchange(body) == 307


def test_a_listener_on_ipv6_is_reached_by_its_url():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")

    async def body(client, url):
        assert url.startswith("https://[::1]:")
        return await get(client, f"{url}/peer")

    assert exchange(body, host="::1")["port"] > 0


def test_every_run_has_a_key_of_its_own_on_the_curve_p_256():
    made = [make() for _ in range(2)]
    assert len({pair.key for pair in made}) == len({pair.certificate for pair in made}) == 2
    from cryptography import x509

    public = x509.load_pem_x509_certificate(made[0].certificate.encode()).public_key()
    assert public.curve.name == "secp256r1"


def test_a_run_without_a_certificate_is_said_in_words(tmp_path):
    with pytest.raises(WireError, match=r"certificate .*tls\.crt"):
        Client(TOKEN, tmp_path / "tls.crt")


def test_the_certificate_s_library_is_loaded_only_where_one_is_made():
    code = "import sys, prorl_cli.wire.certificate, prorl_cli.role; print('cryptography' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
