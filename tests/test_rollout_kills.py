"""kill -9 of the router, of an engine and of the worker itself, in the middle of everything."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from prorl_cli.rollout.boxes import scratch_folder
from prorl_cli.spool.verify import verify_run
from prorl_cli.trajectory import ErrorClass
from tests.rollout_bench import bench, gone, until

SUM = {"domain": "math", "source": "reasoning_gym:chain_sum"}
BOXED = {**SUM, "handler": "tests.rollout_handlers:Boxed"}


def test_a_router_and_an_engine_killed_in_flight_cost_no_episode(tmp_path):
    async def scenario():
        async with bench(tmp_path, {"token_s": 0.05}, {"token_s": 0.05, "die_after": 3}, tasks=[SUM]) as made:
            made.group(0, range(12))
            await until(lambda: made.engines[1].poll() is not None, 30, made.seen)
            made.processes.kill(made.router)
            made.group(1, range(4))
            made.processes.router()
            records = await made.records(16, timeout=60)
            assert [r.error for r in records] == [""] * 16
            survivor = (await made.processes.endpoint(made.engines[0])).incarnation
            assert {r.engine for r in records} == {survivor}

    asyncio.run(scenario())


@pytest.mark.soak
def test_an_engine_that_hangs_is_an_engine_error_and_one_that_fails_is_left_for_another(tmp_path):
    async def scenario():
        rollout = {"run": {"slots": 8, "timeout": "3s"}}
        async with bench(tmp_path, {"hang": True}, tasks=[SUM], rollout=rollout) as made:
            made.group(0, range(2))
            records = await made.records(2)
            assert {r.error_class for r in records} == {ErrorClass.ENGINE}
            await made.none_in_flight()
            await made.script(0, hang=False, fail=True)
            made.engines.append(made.processes.engine())
            await made.processes.endpoint(made.engines[1])
            made.group(1, range(4))
            assert [r.error for r in (await made.records(6))[2:]] == [""] * 4

    asyncio.run(scenario())


@pytest.mark.soak
def test_a_killed_worker_leaves_its_records_and_nothing_else_and_the_next_one_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "node"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    Path(tempfile.gettempdir()).mkdir()

    async def scenario():
        async with bench(tmp_path, {}, tasks=[SUM, BOXED], sandbox={"runtime": "process"}) as made:
            made.group(0, range(4))
            await made.records(4)
            await made.script(0, hang=True)
            made.group(1, range(4), task=1)
            await made.in_flight(4)
            left = made.children()
            assert len(left) >= 6, "a verifier, the boxes' parent and four boxes"
            made.processes.kill(made.worker)
            await until(lambda: gone(left), 5, lambda: f"left behind: {[p for p in left if not gone([p])]}")
            await made.none_in_flight()

            await made.script(0, hang=False)
            made.worker = made.processes.worker()
            await made.follow_worker()
            made.group(1, range(4), task=0, tried=1)
            records = await made.records(8)
            assert sorted((r.group, r.member, r.tried) for r in records) == [
                (group, member, group) for group in range(2) for member in range(4)
            ]
            assert [r.error for r in records] == [""] * 8
            assert not list(verify_run(made.run))
            assert len(list(scratch_folder().glob("boxes-*"))) <= 1, "only the living worker's"

    asyncio.run(scenario())
