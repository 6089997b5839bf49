"""What is left of workers that were killed goes with the next one on the node, and nothing that belongs to the living."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from prorl_cli.sandbox import open_boxes
from prorl_cli.sandbox.janitor import clean
from tests.killing import fork
from tests.sandbox_kit import PROBE, box_processes, opened, orphans_come_here, probe, sandbox, settle

STUBBORN = (
    "import os, subprocess, time\nsubprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    "open(os.environ['HOME'] + '/note', 'w').write('x')\ntime.sleep(60)"
)


async def work(scratch, ready):
    factory = await open_boxes(sandbox("process"), scratch=scratch, tools=[PROBE])
    calls = [asyncio.create_task(probe(await factory.start(), STUBBORN)) for _ in range(2)]
    os.write(ready, b".")
    await asyncio.gather(*calls)


def killed_worker(scratch):
    """All at once, so that none can clear up after another; programs that a tool has started are not told."""
    reader, writer = os.pipe()
    pid = fork(lambda: asyncio.run(work(scratch, writer)))
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read(1) == b"."
    give_up = time.monotonic() + 30
    while len(programs := [process for process in box_processes(pid) if _sleeps(process)]) < 2:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    family = [process for process in [psutil.Process(pid), *box_processes(pid)] if process not in programs]
    for blow in (psutil.Process.suspend, psutil.Process.kill):
        for process in family:
            with suppress(psutil.NoSuchProcess):
                blow(process)
    os.waitpid(pid, 0)
    return programs


def _sleeps(process):
    with suppress(psutil.Error):
        return process.name() == "sleep"


def lives(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_programs_and_folders_of_a_killed_worker_go_with_the_next_one(tmp_path):
    with orphans_come_here():
        programs = killed_worker(tmp_path)
        assert all(map(lives, programs)) and len(os.listdir(tmp_path)) == 1
        asyncio.run(_begin_and_end(tmp_path))
        assert not any(map(lives, programs))
        assert settle() == []
    assert os.listdir(tmp_path) == []


async def _begin_and_end(scratch):
    async with opened("process", scratch):
        assert len(os.listdir(scratch)) == 1


def test_what_runs_in_a_folder_that_is_no_more_goes_too(tmp_path):
    with orphans_come_here():
        programs = killed_worker(tmp_path)
        subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)
        clean(tmp_path)
        assert not any(map(lives, programs))
        assert settle() == []


def test_a_living_worker_and_whoever_only_looks_at_a_folder_are_left_alone(tmp_path):
    async def scene():
        async with opened("process", tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import subprocess\nsubprocess.run(['sleep', '1'])\nout = 'done'"))
            await asyncio.sleep(0.3)
            (folder,) = tmp_path.iterdir()
            onlookers = [
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", folder]),
                subprocess.Popen(["sleep", "60"], env={"HOME": str(tmp_path)}, cwd=folder),
            ]
            for _ in range(3):
                await asyncio.to_thread(clean, tmp_path)
            assert (await call).output == "done"
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"
            time.sleep(0.1)
            alive = [process.poll() is None for process in onlookers]
            for process in onlookers:
                process.kill()
                process.wait()
            assert alive == [True, True]

    asyncio.run(scene())
