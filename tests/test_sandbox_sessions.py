"""python and edit in real boxes: state from call to call, in step with the other tools, within the box's limits."""

import asyncio
from pathlib import Path

import pytest

from tests.sandbox_kit import CONTAINERS, RUNTIMES, one_box, settle

WALLED = ("bwrap", *CONTAINERS)
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


def scene(runtime, scratch, acts, serve=("python", "edit", "calculator"), **settings):
    if runtime == "process":
        settings |= {"unsafe": True}

    async def whole():
        async with one_box(runtime, scratch, serve=serve, **settings) as box:
            await acts(box)

    asyncio.run(whole())
    assert settle() == []


def python(box, code, timeout_s=30.0):
    return box.call("python", {"code": code}, timeout_s)


@each_runtime
def test_python_keeps_its_state_beside_other_tools(runtime, tmp_path):
    async def acts(box):
        assert (await python(box, "x = 41\nopen('f', 'w').write('one\\n') and None")).outcome == "ok"
        assert (
            await box.call("edit", {"command": "str_replace", "path": "f", "old_str": "one", "new_str": "two"}, 20)
        ).outcome == "ok"
        assert (await box.call("calculator", {"expression": "6 * 7"}, 20)).output == "42"
        result = await python(box, "print(open('f').read())\nx + 1")
        assert result.output == "two\n\n42\n"
        assert result.facts["cwd"].startswith("/")
        assert (await box.call("edit", {"command": "undo_edit", "path": "f"}, 20)).outcome == "ok"
        assert (await box.get("f")) == b"one\n"

    scene(runtime, tmp_path, acts)


@each_runtime
def test_python_survives_its_cells_and_their_timeouts(runtime, tmp_path):
    async def acts(box):
        await python(box, "import os, signal, time; x = 1")
        result = await python(box, "print('begun', flush=True)\ntime.sleep(60)", 0.5)
        assert result.outcome == "timeout" and result.output.startswith("begun\n")
        assert (await python(box, "x")).output == "1\n"
        result = await python(box, "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)", 0.5)
        assert result.outcome == "timeout" and result.facts["restarted"] is True
        for death in ("os._exit(3)", "os.kill(os.getpid(), 9)"):
            result = await python(box, f"import os\n{death}")
            assert result.outcome == "error" and result.facts["restarted"] is True
        assert (await python(box, "1 + 1")).output == "2\n"

    scene(runtime, tmp_path, acts)


@pytest.mark.parametrize("runtime", WALLED)
def test_behind_walls_a_cell_that_kills_all_it_can_reach_ends_only_itself(runtime, tmp_path):
    """Each cell looks first whether it is where it should be: outside it would reach this machine."""
    guard = f"import os\nassert os.readlink('/proc/self/ns/pid') != {str(Path('/proc/self/ns/pid').readlink())!r}\n"

    async def acts(box):
        for death in ("os.kill(os.getppid(), 9)", "os.kill(1, 9)", "os.system('sleep 60 &')\nos.kill(-1, 9)"):
            assert (await python(box, guard + death)).outcome == "ok"
            assert (await python(box, "1 + 1")).output == "2\n"
        assert (await box.call("calculator", {"expression": "1"}, 20)).output == "1"

    scene(runtime, tmp_path, acts)


@each_runtime
def test_a_cell_that_takes_too_much_memory_is_a_limit(runtime, tmp_path):
    async def acts(box):
        hog = "kept = []\nwhile True: kept.append(bytearray(os.urandom(2**20)))"
        result = await python(box, f"import os\n{hog}", 60)
        assert result.outcome == "limit:memory" and "limit of memory" in result.output

    scene(runtime, tmp_path, acts, memory="300MiB")


@each_runtime
def test_a_cell_that_takes_too_much_processor_is_a_limit(runtime, tmp_path):
    async def acts(box):
        assert (await python(box, "while True: pass", 60)).outcome == "limit:cpu"

    scene(runtime, tmp_path, acts, cpu="2s")


@pytest.mark.parametrize("runtime", WALLED)
def test_a_cell_that_forks_without_end_is_a_limit_and_the_state_is_kept(runtime, tmp_path):
    async def acts(box):
        await python(box, "import os, time\nx = 1")
        bomb = "born = []\nwhile True:\n  born.append(os.fork())\n  if not born[-1]: time.sleep(60)"
        result = await python(box, bomb, 60)
        assert result.outcome in ("limit:processes", "error") and result.facts["error"] == "BlockingIOError"
        assert (await box.call("calculator", {"expression": "1"}, 20)).outcome == "limit:processes"
        assert (await box.call("edit", {"command": "view", "path": "/"}, 20)).outcome == "limit:processes"
        assert (
            await python(box, "for pid in born: os.kill(pid, 9)\nfor pid in born: os.waitpid(pid, 0)\nx")
        ).output == "1\n"
        assert (await box.call("calculator", {"expression": "1"}, 20)).output == "1"

    scene(runtime, tmp_path, acts, processes=50)


@each_runtime
def test_a_limit_that_a_background_job_passes_is_not_the_running_calls(runtime, tmp_path):
    """It lives in bash while a cell runs; the cell goes on, and the next call of the policy is told."""
    job = "(until [ -e go ]; do sleep 0.05; done; tail /dev/zero; touch ended) >&- 2>&- &"
    wait = "import os, time\nopen('go', 'w').close()\nwhile not os.path.exists('ended'): time.sleep(0.05)"

    async def acts(box):
        assert (await box.call("bash", {"command": job}, 30)).outcome == "ok"
        cell = await python(box, f"{wait}\nprint('mine goes on')", 60)
        assert (cell.outcome, cell.output) == ("ok", "mine goes on\n")
        assert await box.get("ended") == b"", "the worker's own calls are not the policy's next one"
        told = await box.call("bash", {"command": "touch begun"}, 30)
        assert told.outcome == "limit:memory" and "what ran in the background was ended" in told.output
        assert (await box.call("bash", {"command": "ls begun"}, 30)).facts["exit_code"] == 2, "it was not begun"
        assert (await python(box, "1 + 1")).output == "2\n"

    scene(runtime, tmp_path, acts, memory="300MiB", serve=("bash", "python"))


def test_a_limit_that_the_running_call_passes_is_its_own(tmp_path):
    async def acts(box):
        result = await box.call("bash", {"command": "sleep 60 & echo part; tail /dev/zero"}, 60)
        assert result.outcome == "limit:memory" and result.output.startswith("part\n")
        assert (await box.call("bash", {"command": "echo next"}, 30)).output == "next\n"

    scene("bwrap", tmp_path, acts, memory="300MiB", serve=("bash",))
