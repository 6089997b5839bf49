"""`python -m prorl_cli.engine RUN_DIR` as its supervisor sees it: start, serve, swap, stop, and an exit that speaks."""

import asyncio
import signal

import pytest

from prorl_cli.engine import GenerateRequest, generate
from prorl_cli.spool.members import read_endpoints
from tests.engine_kit import publish, respell, tiny_model
from tests.engine_serving import engine_run
from tests.run_parts import Processes, client_of


@pytest.fixture
def processes(tmp_path):
    made = Processes(engine_run(tmp_path / "run"))
    yield made
    made.close()


async def until(condition, seconds=30):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def test_it_waits_for_weights_serves_follows_and_ends_with_zero_when_asked(processes):
    run = processes.run

    def mine():
        return next(iter(read_endpoints(run)), None)

    async def test():
        engine = processes.start("-m", "prorl_cli.engine")
        await until(lambda: mine() and mine().waiting == "the first weights")
        publish(run, 0, tiny_model(0))
        await until(lambda: mine().version == 0 and mine().state == "ready")
        async with client_of(run) as client:
            request = GenerateRequest(request_id="a", token_ids=[1], max_tokens=20, seed=1)
            first = await generate(client, mine().url, request, 10)
            publish(run, 1, tiny_model(1))
            await until(lambda: mine().version == 1)
            second = await generate(client, mine().url, request, 10)
            assert (first.spans[0].version, second.spans[0].version) == (0, 1)
            running = asyncio.ensure_future(generate(client, mine().url, GenerateRequest(
                request_id="b", token_ids=[2], max_tokens=390, seed=1), 20))  # fmt: skip
            await asyncio.sleep(0.1)
            engine.send_signal(signal.SIGTERM)
            assert len((await running).token_ids) == 390
        assert await asyncio.to_thread(engine.wait, 20) == 0
        assert mine().state == "ended" and float(mine().facts["busy_s"]) > 0

    asyncio.run(test())


def test_weights_that_cannot_be_proved_end_it_with_one_line_and_no_version(processes):
    run = processes.run
    publish(run, 0, tiny_model(0), change=lambda folder: respell(folder, lambda t: t["lm_head.weight"].neg_()))
    engine = processes.start("-m", "prorl_cli.engine")
    assert engine.wait(40) == 1
    log = engine.log.read_text()
    assert "lm_head.weight" in log and "Traceback" not in log
    endpoint = next(iter(read_endpoints(run)))
    assert (endpoint.state, endpoint.version) == ("failed", -1)
