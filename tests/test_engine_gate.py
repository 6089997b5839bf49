"""The gate over a real socket, in front of an app that records what reaches it."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from prorl_cli.engine.gate import SETTINGS, Door, Gate, GateSettings, GateState, Move, weigh
from prorl_cli.engine.protocol import GENERATE_PATH
from tests import tls

DATA, ADMIN = "data-token", "admin-token"
LIMITS = GateSettings(data_token=DATA, admin_token=ADMIN, vocab_size=102, max_model_len=64)


class App:
    """Answers 200 with the body it was given; holds POSTs that say so until released or disconnected."""

    def __init__(self):
        self.seen = []
        self.left = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.seen.append((scope["method"], scope["path"], body))
        if not self.release.is_set():
            waits = [asyncio.ensure_future(wait) for wait in (receive(), self.release.wait())]
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in pending:
                wait.cancel()
            if waits[0] in done and waits[0].result()["type"] == "http.disconnect":
                self.left.set()
                return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"kept")]})
        await send({"type": "http.response.body", "body": body})


class Site:
    """A gate, what is behind it, and a client before it."""

    def __init__(self, app, door, session, url):
        self.app, self.door, self.session, self.url = app, door, session, url

    async def call(self, method, path, token=None, body=None):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self.session.request(method, self.url + path, headers=headers, data=data) as answer:
            return answer.status, await answer.read(), answer.headers

    async def status(self, *arguments):
        return (await self.call(*arguments))[0]


@asynccontextmanager
async def site(door=None, **changes):
    app = App()
    door = door or Door(settings=LIMITS, state=GateState.READY, version=7, **changes)
    server = tls.server(Gate(app, door))
    url = await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls.trust()), trust_env=False) as session:
        yield Site(app, door, session, url)
    await server.stop()


def run(test):
    asyncio.run(asyncio.wait_for(test, 20))


def ask(ids, **sampling):
    return {"request_id": "r", "token_ids": ids, "sampling_params": {"max_tokens": 8, **sampling}}


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


PATHS = [
    ("GET", "/health", DATA), ("GET", "/gate", DATA), ("GET", "/metrics", DATA), ("HEAD", "/health", DATA),
    ("POST", GENERATE_PATH, DATA), ("POST", "/gate/drain", ADMIN), ("POST", "/collective_rpc", ADMIN),
    ("POST", "/pause", ADMIN), ("POST", GENERATE_PATH + "/", ADMIN), ("PUT", GENERATE_PATH, ADMIN),
    ("DELETE", "/health", ADMIN), ("OPTIONS", "/health", ADMIN), ("POST", "//gate/drain", ADMIN),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "token"), PATHS)
def test_every_path_needs_its_own_token(method, path, token):
    async def test():
        async with site() as here:
            wrong = {None, "", "nonsense", "Bearer", DATA, ADMIN, token[:-1], token + "x"} - {token}
            for other in wrong:
                assert await here.status(method, path, other, ask([1])) == 401, other
            assert not here.app.seen and here.door.state is GateState.READY
            assert await here.status(method, path, token, ask([1])) in (200, 404)

    run(test())


def test_an_empty_token_in_the_settings_is_refused():
    with pytest.raises(ValueError, match="empty"):
        GateSettings(data_token="", admin_token=ADMIN)


def test_ids_outside_the_vocabulary_never_reach_the_engine():
    async def test():
        async with site() as here:
            for ids in ([102], [0, -1], [5, 2**31], [2**80], [101, 102, 3]):
                assert await here.status("POST", GENERATE_PATH, DATA, ask(ids)) == 422, ids
            for body in (
                b"",
                b"{",
                b"[]",
                b'{"token_ids": "abc"}',
                b'{"token_ids": [1.5]}',
                b'{"token_ids": [true]}',
                b"{}",
            ):
                assert await here.status("POST", GENERATE_PATH, DATA, body) == 400, body
            assert not here.app.seen
            assert await here.status("POST", GENERATE_PATH, DATA, ask([0, 101])) == 200
            assert here.door.in_flight_requests == here.door.in_flight_tokens == 0

    run(test())


def test_the_body_is_replayed_byte_for_byte_and_the_answer_is_stamped():
    async def test():
        async with site() as here:
            body = (
                b' { "token_ids":[1,2 ], "odd": "\\u00e9",\n "sampling_params": {"max_tokens": 3, "new_field": [1]} } '
                + b" " * 300_000
            )
            status, answer, headers = await here.call("POST", GENERATE_PATH, DATA, body)
            assert (status, answer) == (200, body)
            assert here.app.seen == [("POST", GENERATE_PATH, body)]
            assert headers["x-weight-version"] == "7" and headers["x-own"] == "kept"

    run(test())


def test_in_flight_counts_prompt_and_room_and_returns_to_zero_when_clients_leave():
    async def test():
        async with site() as here:
            here.app.release.clear()
            calls = [asyncio.ensure_future(here.status("POST", GENERATE_PATH, DATA, ask([1] * n))) for n in (10, 60)]
            await until(lambda: here.door.in_flight_requests == 2)
            # 10 + 8 asked for; 60 + the 4 that a length of 64 leaves.
            assert here.door.in_flight_tokens == 18 + 64
            report = json.loads((await here.call("GET", "/gate", DATA))[1])
            assert (report["in_flight_requests"], report["in_flight_tokens"]) == (2, 82)
            calls[0].cancel()
            await until(here.app.left.is_set)
            await until(lambda: here.door.in_flight_tokens == 64)
            here.app.release.set()
            assert await calls[1] == 200
            await until(lambda: here.door.in_flight_requests == here.door.in_flight_tokens == 0)

    run(test())


def test_a_client_that_leaves_within_its_body_reaches_nobody():
    async def test():
        async with site() as here:
            host, port = here.url.removeprefix("https://").split(":")
            _, writer = await asyncio.open_connection(host, int(port), ssl=tls.trust())
            head = f"POST {GENERATE_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {DATA}\r\nContent-Length: 100\r\n\r\n"
            writer.write(head.encode() + b'{"token_ids"')
            await writer.drain()
            writer.close()
            assert await here.status("POST", GENERATE_PATH, DATA, ask([1])) == 200
            assert len(here.app.seen) == 1 and here.door.in_flight_requests == 0

    run(test())


def test_drain_refuses_new_work_and_lets_the_old_finish():
    async def test():
        async with site() as here:
            here.app.release.clear()
            running = asyncio.ensure_future(here.status("POST", GENERATE_PATH, DATA, ask([1])))
            await until(lambda: here.door.in_flight_requests == 1)
            status, body, _ = await here.call("POST", "/gate/drain", ADMIN)
            assert status == 200 and json.loads(body)["state"] == "draining"
            assert await here.status("POST", GENERATE_PATH, DATA, ask([1])) == 503
            here.app.release.set()
            assert await running == 200

    run(test())


@pytest.mark.parametrize("state", [GateState.LOADING, GateState.FAILED, GateState.DRAINING])
def test_nothing_enters_an_engine_that_does_not_serve(state):
    async def test():
        async with site() as here:
            here.door.state = state
            status, body, _ = await here.call("POST", GENERATE_PATH, DATA, ask([1]))
            assert status == 503 and state in body.decode() and not here.app.seen
            here.door.drain()
            assert here.door.state is (GateState.FAILED if state is GateState.FAILED else GateState.DRAINING)

    run(test())


def test_requests_wait_inside_a_paused_engine():
    async def test():
        async with site() as here:
            here.door.state = GateState.PAUSED
            assert await here.status("POST", GENERATE_PATH, DATA, ask([1])) == 200

    run(test())


def test_the_report_holds_the_engines_own_facts():
    async def test():
        async with site(facts=lambda: {"tokens_total": 5, "busy_s": 0.5, "tokens_per_s": 10.0}) as here:
            report = json.loads((await here.call("GET", "/gate", DATA))[1])
            assert report == {
                "state": "ready", "version": 7, "in_flight_requests": 0, "in_flight_tokens": 0, "tokens_total": 5,
                "busy_s": 0.5, "tokens_per_s": 10.0, "vocab_size": 102, "max_model_len": 64,
            }  # fmt: skip
            assert await here.status("GET", "/gate/other", DATA) == 404
            assert await here.status("GET", "/gateway", DATA) == 200, "the engine's own path"

    run(test())


@pytest.fixture
def led(tmp_path, monkeypatch):
    """The door of a gate that is loaded by import path alone."""
    path = tmp_path / "gate.json"
    path.write_bytes(msgspec.json.encode(LIMITS))
    monkeypatch.setenv(SETTINGS, str(path))
    return Gate(App.__call__).door


def test_loaded_by_import_path_alone_it_reads_its_settings_and_lets_nothing_in_before_it_is_told(led):
    assert led.settings == LIMITS and led.state is GateState.LOADING and not led.open


def test_whoever_leads_it_moves_it_with_the_admin_token_and_every_move_rings(led):
    async def test():
        async with site(led) as here:
            move = {"state": "ready", "version": 3}
            for token in (None, DATA):
                assert await here.status("POST", "/gate/state", token, move) == 401
            rung = asyncio.ensure_future(here.call("GET", "/doorbell?since=0", DATA))
            assert await here.status("GET", "/doorbell?since=0", None) == 401
            for wrong in (b"", b"{", {"state": "asleep", "version": 3}, {"state": "ready"}):
                assert await here.status("POST", "/gate/state", ADMIN, wrong) == 400
            await asyncio.sleep(0.05)
            assert not rung.done() and led.state is GateState.LOADING
            report = json.loads((await here.call("POST", "/gate/state", ADMIN, move))[1])
            assert (report["state"], report["version"]) == ("ready", 3)
            assert json.loads((await rung)[1]) == {"rings": 1}
            assert await here.status("POST", GENERATE_PATH, DATA, ask([1])) == 200
            assert all(path == GENERATE_PATH for _, path, _ in here.app.seen)

    run(test())


def test_a_gate_in_its_engines_own_process_is_not_moved_from_outside():
    async def test():
        async with site() as here:
            assert await here.status("POST", "/gate/state", ADMIN, {"state": "failed", "version": 3}) == 404
            assert here.door.state is GateState.READY

    run(test())


@pytest.mark.parametrize("end", ["ready", "failed"])
def test_answers_of_a_paused_engine_are_held_until_its_weights_are_proved(led, end):
    async def test():
        async with site(led) as here:
            led.move(Move(state=GateState.PAUSED, version=1))
            held = asyncio.ensure_future(here.call("POST", GENERATE_PATH, DATA, ask([1])))
            await until(lambda: here.app.seen)
            await asyncio.sleep(0.05)
            assert not held.done() and led.in_flight_requests == 1
            led.move(Move(state=GateState(end), version=2))
            if end == "ready":
                status, _, headers = await held
                assert status == 200 and headers["x-weight-version"] == "2"
            else:
                await asyncio.sleep(0.05)
                assert not held.done()
                held.cancel()

    run(test())


def test_a_door_that_drains_lets_out_what_was_proved_and_nothing_else(led):
    for state, out in ((GateState.READY, True), (GateState.PAUSED, False)):
        led.move(Move(state=state, version=1))
        led.move(Move(state=GateState.DRAINING, version=1))
        assert led.proved.is_set() is out


def test_generated_tokens_and_busy_time_are_counted_where_the_engine_gives_no_facts():
    async def test():
        async with site() as here:
            body = ask([1]) | {"usage": {"prompt_tokens": 1, "completion_tokens": 12}}
            for _ in range(2):
                await here.status("POST", GENERATE_PATH, DATA, body)
            report = json.loads((await here.call("GET", "/gate", DATA))[1])
            assert report["tokens_total"] == 24 and 0 < report["busy_s"] < 5
            here.app.release.clear()
            running = asyncio.ensure_future(here.status("POST", GENERATE_PATH, DATA, ask([1])))
            await until(lambda: here.door.busy_s > report["busy_s"] + 0.05)
            here.app.release.set()
            await running
            idle = here.door.busy_s
            await asyncio.sleep(0.02)
            assert here.door.busy_s == idle

    run(test())


def test_a_request_without_max_tokens_weighs_all_the_room_there_is():
    body = json.dumps({"token_ids": [1] * 10}).encode()
    assert weigh(body, LIMITS) == (64, None)


def test_a_websocket_gets_no_further():
    async def test():
        sent = []

        async def send(message):
            sent.append(message)

        await Gate(App(), Door(settings=LIMITS))({"type": "websocket", "path": "/", "headers": []}, None, send)
        assert sent == [{"type": "websocket.close", "code": 1008}]

    run(test())
