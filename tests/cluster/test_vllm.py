"""The real vLLM behind the gate: exact through swaps, closed to strangers, never on unproved weights, never left behind."""

import asyncio
import json
import random
import re
import signal
import ssl
import stat

import aiohttp
import pytest

from prorl_cli.engine.protocol import GENERATE_PATH
from prorl_cli.errors import InfraError
from prorl_cli.spool.canary import CANARY
from prorl_cli.wire import WireError, listen
from tests.cluster.vllm_run import engines, gone, listening, traces, words
from tests.engine_kit import VOCAB, publish, tiny_model, worst
from tests.run_parts import client_of

TOLERANCE = 1e-4
"""Nats, float32 on both sides."""

ALL_PATHS = [
    "/", "/health", "/ping", "/version", "/docs", "/redoc", "/openapi.json", "/metrics", "/load", "/v1/models", "/gate",
    "/doorbell", "/is_paused", "/weight_info", "/server_info", "/is_sleeping", "/get_world_size", "/nothing",
]  # fmt: skip
CHANGING_PATHS = [
    "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/abort_requests",
    "/weight_checker", "/update_weights", "/sleep", "/wake_up", "/v1/completions", "/v1/chat/completions", "/tokenize",
    "/inference/v1/abort_requests", "/gate/state", "/gate/drain", GENERATE_PATH + "/",
]  # fmt: skip


def spoil_canary(folder):
    canary = json.loads((folder / CANARY).read_text())
    canary["logprobs"] = [value - 1 for value in canary["logprobs"]]
    (folder / CANARY).write_text(json.dumps(canary))


@pytest.fixture(scope="module")
def models():
    return {version: tiny_model(version) for version in range(6)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory, models):
    """On version 0; the tests of this file go on with it, in their order."""
    processes, (made,) = engines(tmp_path_factory.mktemp("vllm") / "run", 1)
    publish(made.run, 0, models[0])
    asyncio.run(made.ready(0))
    yield made
    processes.close()


def play(test):
    asyncio.run(test)


def test_logprobs_are_those_of_the_version_of_each_token_through_three_swaps_with_requests_in_flight(engine, models):
    prompts = [random.Random(n).choices(range(VOCAB), k=70) for n in range(3)]
    answers, latest = [], 0

    async def converse(client, number):
        """The same few prompts again and again: a cache that survived a reload would answer for them."""
        turn = random.Random(number)
        while latest < 3 or turn.random() < 0.5:
            prompt = turn.choice(prompts)[: turn.choice((40, 70))]
            answers.append((prompt, await engine.ask(client, prompt, max_tokens=200)))

    async def test():
        nonlocal latest
        rung = asyncio.Event()
        async with client_of(engine.run) as client:
            hearing = asyncio.ensure_future(listen(client, engine.url, rung))
            talks = [asyncio.ensure_future(converse(client, number)) for number in range(9)]
            for version in (1, 2, 3):
                seen = len(answers)
                while len(answers) < seen + 12:
                    await asyncio.sleep(0.05)
                rung.clear()
                publish(engine.run, version, models[version])
                await engine.until(lambda mine, version=version: mine.version == version)
                assert rung.is_set()
                latest = version
            await asyncio.gather(*talks)
            hearing.cancel()

    play(test())
    spans = [[(span.version, span.start, span.end) for span in answer.spans] for _, answer in answers]
    assert {version for each in spans for version, _, _ in each} == {0, 1, 2, 3}
    crossed = sum(len(each) > 1 for each in spans)
    distances = [
        worst(models, prompt, answer.token_ids, answer.logprobs, each)
        for (prompt, answer), each in zip(answers, spans, strict=True)
    ]
    print(f"{len(answers)} answers, {crossed} crossed a swap, largest distance {max(distances):.2g}")
    assert crossed >= 6 and max(distances) < TOLERANCE
    # Versions only ever rise within one answer.
    assert all(each == sorted(each) for each in spans)


def test_no_path_of_it_answers_without_a_token_and_none_that_changes_it_to_an_agent(engine):
    async def statuses(method, paths, token):
        trust = ssl.create_default_context(cafile=engine.run.certificate)
        trust.check_hostname = False
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust), headers=headers) as session:
            found = []
            for path in paths:
                async with session.request(method, engine.url + path, data=b"{}") as answer:
                    found.append((answer.status, path))
        return found

    async def test():
        data = engine.run.data_token.read_text()
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            for token in ("", "nonsense"):
                found = await statuses(method, [*ALL_PATHS, *CHANGING_PATHS, GENERATE_PATH], token)
                assert {status for status, _ in found} == {401}, found
        assert {status for status, _ in await statuses("POST", CHANGING_PATHS, data)} == {401}
        assert (200, "/health") in await statuses("GET", ["/health"], data)

    play(test())


def test_an_id_outside_the_vocabulary_is_refused_before_it_kills_the_server(engine):
    async def test():
        async with client_of(engine.run) as client:
            for ids in ([VOCAB], [1, -1], [2**31]):
                with pytest.raises(InfraError, match="422"):
                    await engine.ask(client, ids)
            assert len((await engine.ask(client, [VOCAB - 1], max_tokens=5)).token_ids) == 5

    play(test())


def test_the_work_of_a_client_that_leaves_ends(engine):
    async def test():
        async with client_of(engine.run) as client:

            async def gate():
                return await client.call("GET", f"{engine.url}/gate", deadline_s=5)

            before = await gate()
            running = [asyncio.ensure_future(engine.ask(client, [n], max_tokens=390)) for n in range(6)]
            while (await gate())["in_flight_requests"] < 6:
                await asyncio.sleep(0.01)
            for one in running:
                one.cancel()
            async with asyncio.timeout(20):
                while (await gate())["in_flight_requests"]:
                    await asyncio.sleep(0.01)
            # Generated to the end, they would have been counted.
            assert (await gate())["tokens_total"] == before["tokens_total"]

    play(test())


def test_secrets_are_in_no_command_line_and_no_file_of_others_and_only_its_own_port_is_reachable(engine):
    tokens = (engine.run.data_token.read_text(), engine.run.admin_token.read_text())
    family = engine.family()
    assert len(family) >= 4, "role, keeper, server, engine core"
    for process in family[1:]:
        assert not any(token in words(process) for token in tokens)
    assert not any(token in engine.log for token in tokens)
    scratch = engine.scratch()
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    assert stat.S_IMODE((scratch / "gate.json").stat().st_mode) == 0o600
    assert not [path for path in traces(family) if path.name.startswith("psm_") and path.exists()]
    own = int(engine.url.rsplit(":", 1)[1])
    others = {place for place in listening(family) if place[1] != own}
    print("further listeners:", others)
    assert all(address in ("127.0.0.1", "::1") for address, _ in others)


def test_weights_whose_canary_is_wrong_are_never_served_and_end_the_engine_with_everything_it_started(engine, models):
    family = engine.family()
    left = traces(family)
    assert any("psm_" in path.name for path in left) and engine.scratch() in left

    async def test():
        async with client_of(engine.run) as client:
            running = [asyncio.ensure_future(engine.ask(client, [n], max_tokens=390)) for n in range(3)]
            await asyncio.sleep(0.3)
            publish(engine.run, 4, models[4], change=spoil_canary)
            results = await asyncio.gather(*running, return_exceptions=True)
            for result in results:
                assert isinstance(result, InfraError) or {span.version for span in result.spans} == {3}
            assert await asyncio.to_thread(engine.process.wait, 60) == 1
            with pytest.raises(WireError):
                await client.call("GET", f"{engine.url}/gate", deadline_s=2)

    play(test())
    assert "version 4 is not served" in engine.log and "nats off" in engine.log
    assert (engine.endpoint.state, engine.endpoint.version) == ("failed", 3)
    assert nothing_left(family, left)


@pytest.fixture(scope="module")
def three(tmp_path_factory, models):
    """Engines of one run on one node."""
    processes, made = engines(tmp_path_factory.mktemp("vllm") / "run", 3)
    publish(made[0].run, 0, models[0])

    async def ready():
        await asyncio.gather(*(one.ready(0) for one in made))

    asyncio.run(ready())
    yield [(one, one.family(), traces(one.family())) for one in made]
    processes.close()


def nothing_left(family, left):
    return gone(family) and not [path for path in left if path.exists()]


def test_a_killed_server_ends_its_role_which_says_so(three):
    engine, family, left = three[0]
    engine.server().kill()
    assert engine.process.wait(30) == 1
    # Whichever is noticed first.
    last = engine.log.splitlines()[-1]
    assert re.search(r"ERROR engine: the vLLM server (ended with code|does not answer)", last), last
    assert nothing_left(family, left)


def test_a_killed_role_ends_its_server(three):
    engine, family, left = three[1]
    engine.process.send_signal(signal.SIGKILL)
    engine.process.wait(10)
    assert nothing_left(family, left)


def test_a_role_that_is_told_to_end_lets_what_is_in_flight_finish(three):
    engine, family, left = three[2]

    async def test():
        async with client_of(engine.run) as client:
            running = asyncio.ensure_future(engine.ask(client, [1, 2], max_tokens=100))
            while not (await client.call("GET", f"{engine.url}/gate", deadline_s=5))["in_flight_requests"]:
                await asyncio.sleep(0.01)
            engine.process.send_signal(signal.SIGTERM)
            assert len((await running).token_ids) == 100
        assert await asyncio.to_thread(engine.process.wait, 30) == 0

    play(test())
    assert engine.endpoint.state == "ended" and nothing_left(family, left)
