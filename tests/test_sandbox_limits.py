"""Memory, time, processor and processes of a box: reaching a limit is an outcome, and the box goes on empty."""

import asyncio

import pytest

from tests.sandbox_kit import RUNTIMES, busy, one_box, opened, probe, until

each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


@each_runtime
def test_every_limit_is_an_outcome_and_the_box_goes_on(runtime, tmp_path):
    async def scene():
        async with one_box(runtime, tmp_path, memory="200MiB", cpu="100s", processes=8) as box:
            greedy = await probe(box, f"out = len(bytearray({400 * 2**20}))")
            late = await probe(box, "import time; time.sleep(60)", timeout_s=0.1)
            crash = await probe(box, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
            silent = await probe(box, "import os; os._exit(0)")
            raised = await probe(box, "1 / 0")
            left = await probe(box, "import sys; sys.exit(3)")
            after = await box.call("calculator", {"expression": "2 + 2"}, 10)
        assert greedy.outcome == "limit:memory"
        assert (late.outcome, late.output) == ("timeout", "error: the tool did not finish within 0.1 s")
        assert (crash.outcome, crash.output) == ("error", "error: the tool died of SIGSEGV")
        assert silent.outcome == left.outcome == "error"
        assert raised.output == "error: ZeroDivisionError: division by zero"
        assert after.output == "4"

    asyncio.run(scene())


@each_runtime
def test_processor_time_is_counted_over_all_calls_of_the_box(runtime, tmp_path):
    burn = "import time\nwhile time.process_time() < {}: pass"

    async def scene():
        async with one_box(runtime, tmp_path, cpu="1s") as box:
            assert (await probe(box, burn.format(0.6))).outcome == "ok"
            assert (await probe(box, burn.format(60))).outcome == "limit:cpu"
            assert (await box.call("calculator", {"expression": "1"}, 10)).outcome == "limit:cpu"

    asyncio.run(scene())


def test_processor_time_ends_a_tool_that_ignores_the_warning(tmp_path):
    async def scene():
        async with one_box("process", tmp_path, cpu="1s") as box:
            stubborn = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
            assert (await probe(box, stubborn)).outcome == "limit:cpu"

    asyncio.run(scene())


def test_processes_are_counted_per_box(tmp_path):
    fill = """
        import os, time
        made = 0
        while made < {}:
            if os.fork() == 0:
                time.sleep(60)
            made += 1
        out = made
    """

    async def scene():
        async with opened("bwrap", tmp_path, processes=8) as factory:
            one, other = await factory.start(), await factory.start()
            full, within = await asyncio.gather(probe(one, fill.format(50)), probe(other, fill.format(6)))
            assert (full.outcome, within.outcome) == ("limit:processes", "ok")
            assert (await probe(one, fill.format(6))).outcome == "ok", "the first call's processes are gone"

    asyncio.run(scene())


@each_runtime
def test_what_a_call_started_ends_with_it(runtime, tmp_path):
    stray = """
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    time.sleep({0})
                time.sleep({0})
        time.sleep({1})
    """

    async def scene():
        async with one_box(runtime, tmp_path) as box:
            assert (await probe(box, stray.format(60, 0))).outcome == "ok"
            await until(lambda: not busy())
            assert (await probe(box, stray.format(60, 60), timeout_s=0.2)).outcome == "timeout"
            await until(lambda: not busy())
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


@each_runtime
def test_a_fork_bomb_ends_with_its_call(runtime, tmp_path):
    bomb = """
        import os
        for _ in range(5):
            os.fork()
        while True:
            pass
    """

    async def scene():
        async with one_box(runtime, tmp_path, processes=40) as box:
            assert (await probe(box, bomb, timeout_s=0.5)).outcome in ("timeout", "limit:processes")
            await until(lambda: not busy())

    asyncio.run(scene())
