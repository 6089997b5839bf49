"""kill -9 of the worker, of the boxes' parent, of a box, at seeded random moments: nothing is left, and it goes on."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from prorl_cli.errors import InfraError
from prorl_cli.sandbox import open_boxes, root
from prorl_cli.sandbox.janitor import clean
from tests.killing import fork, wait
from tests.sandbox_kit import (
    PROBE,
    RUNTIMES,
    box_processes,
    first_processes,
    has_grandchildren,
    need_runtime,
    opened,
    orphans_come_here,
    probe,
    sandbox,
    settle,
    top_of,
    until,
    zygote_of,
)

each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)
SLEEPING_FAMILY = (
    "import os, time\nos.fork()\nos.setsid() if os.getpid() != os.getsid(0) else None\nos.fork()\ntime.sleep(60)"
)


async def work(runtime, scratch, ready):
    """A worker's life: boxes that compute, boxes whose tools sleep with children, boxes just opened."""
    factory = await open_boxes(sandbox(runtime), scratch=scratch, tools=[PROBE])
    sleepers = [asyncio.create_task(probe(await factory.start(), SLEEPING_FAMILY)) for _ in range(2)]
    os.write(ready, b".")
    while not any(sleeper.done() for sleeper in sleepers):
        box = await factory.start()
        assert (await box.call("calculator", {"expression": "1 + 1"}, 60)).output == "2"
        await box.close()


def worker(runtime, scratch):
    """Fork one, and wait until its boxes are at work."""
    reader, writer = os.pipe()
    pid = fork(lambda: asyncio.run(work(runtime, scratch, writer)))
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read(1) == b"."
    return pid


@pytest.fixture
def warm():
    """What every forked worker would ask the interpreter is asked once."""
    root.find_python(root.interpreter())
    with orphans_come_here():
        yield


@each_runtime
@pytest.mark.parametrize("seed", range(6))
def test_a_killed_worker_leaves_nothing(runtime, seed, tmp_path, warm):
    need_runtime(runtime)
    mounts = Path("/proc/self/mounts").read_text()
    pid = worker(runtime, tmp_path)
    time.sleep(random.Random(seed).uniform(0, 0.05))
    assert len(box_processes(pid)) >= 5, "parent, two first processes, two tools"
    os.kill(pid, signal.SIGKILL)
    assert wait(pid) == -signal.SIGKILL
    assert settle() == []
    assert os.listdir(tmp_path) == []
    assert Path("/proc/self/mounts").read_text() == mounts


@each_runtime
@pytest.mark.parametrize("seed", range(2))
def test_worker_and_parent_killed_together_leave_no_process_and_no_folder_past_the_next_start(
    runtime, seed, tmp_path, warm
):
    need_runtime(runtime)
    pid = worker(runtime, tmp_path)
    time.sleep(random.Random(seed).uniform(0, 0.05))
    zygote = zygote_of(box_processes(pid))
    for process in (pid, zygote.pid):
        os.kill(process, signal.SIGKILL)
    wait(pid)
    assert settle() == []
    clean(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_living_workers_folder_is_not_swept(tmp_path):
    async def scene():
        async with opened("process", tmp_path) as factory:
            box = await factory.start()
            clean(tmp_path)
            assert (await probe(box, "open('note', 'w').write('x')")).outcome == "ok"

    asyncio.run(scene())


async def episode(factory, rng, calls=3, begun=None):
    """One box, some calls; what became of it."""
    try:
        box = await factory.start()
        if begun:
            begun.set()
        for _ in range(calls):
            if rng.random() < 0.3:
                await probe(box, "import time; time.sleep(0.02)")
            assert (await box.call("calculator", {"expression": "2 * 3"}, 60)).output == "6"
        await box.close()
    except InfraError as error:
        assert error.error_class == "sandbox"
        return "lost"
    return "done"


async def episodes_around(factory, rng, kill, delay):
    begun = asyncio.Event()
    running = [asyncio.create_task(episode(factory, rng, calls=20, begun=begun)) for _ in range(4)]
    await begun.wait()  # some runtimes take longer to start a box than the delay
    await asyncio.sleep(delay)
    kill()
    return await asyncio.wait_for(asyncio.gather(*running), 30)


@each_runtime
def test_a_killed_parent_costs_its_boxes_and_the_next_start_brings_another(runtime, tmp_path, warm):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            fates = []
            for seed in range(4):
                rng = random.Random(seed)
                top = top_of(box_processes())
                victim = rng.choice([top, zygote_of(box_processes())])
                fates += await episodes_around(factory, rng, victim.kill, rng.uniform(0, 0.1))
                assert await episode(factory, rng) == "done"
                assert len(list(tmp_path.glob("boxes-*"))) == (runtime != "bwrap")
        assert set(fates) <= {"done", "lost"}
        assert "lost" in fates

    asyncio.run(scene())
    assert settle() == []
    assert os.listdir(tmp_path) == []


@each_runtime
def test_a_call_that_loses_the_parent_is_an_error_of_the_machine_at_once(runtime, tmp_path, warm):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)", timeout_s=90))
            zygote = zygote_of(box_processes())
            await until(lambda: has_grandchildren(zygote))
            zygote.kill()
            with pytest.raises(InfraError, match="parent process"):
                await asyncio.wait_for(call, 10)
            assert await episode(factory, random.Random(0)) == "done"

    asyncio.run(scene())
    assert settle() == []


@each_runtime
def test_a_killed_box_costs_itself_alone(runtime, tmp_path, warm):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            for seed in range(4):
                rng = random.Random(seed)
                fates = await episodes_around(factory, rng, lambda rng=rng: kill_any_box(rng), rng.uniform(0, 0.1))
                assert fates.count("lost") <= 1
                assert await episode(factory, rng) == "done"

    asyncio.run(scene())
    assert settle() == []
    assert os.listdir(tmp_path) == []


def kill_any_box(rng):
    try:
        rng.choice(first_processes()).kill()
    except (psutil.NoSuchProcess, IndexError):
        return
