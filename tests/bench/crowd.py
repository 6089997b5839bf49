"""Many boxes at once: when each has answered, and what they cost the whole machine, FUSE daemons included."""

import asyncio
import os
import subprocess
import tempfile
import time
from pathlib import Path

from prorl_cli.sandbox.factory import opened_in
from tests.killing import fork
from tests.sandbox_kit import orphans_come_here

AT_ONCE = 64
BY_ITSELF = 16


async def answers(settings, runtime, count, ask=True):
    """Seconds from asking for all of them until each is up and, with `ask`, has answered its first command."""
    with tempfile.TemporaryDirectory() as scratch:
        factory = await opened_in(runtime, settings, Path(scratch))
        try:
            return await asyncio.gather(*(_first_answer(factory, ask, time.perf_counter()) for _ in range(count)))
        finally:
            await factory.close()


async def _first_answer(factory, ask, began):
    box = await factory.start()
    if ask:
        answer = await box.call("bash", {"command": "echo up"}, 60)
        assert answer.output == "up\n", answer
    return time.perf_counter() - began


def cpu_of(act):
    """Processor seconds of `act` in a process of its own and of all that it leaves, until the last of them has ended."""

    def whole():
        with orphans_come_here():
            act()
            _reap_all()

    _, status, usage = os.wait4(fork(whole), 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def _reap_all():
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def cpu_a_start(settings, runtime):
    """Of a box from its start to its end, nothing done in it; what opening the factory costs is left out."""
    crowd, nobody = (cpu_of(lambda n=n: asyncio.run(answers(settings, runtime, n, ask=False))) for n in (AT_ONCE, 0))
    return (crowd - nobody) / AT_ONCE


def cpu_of_an_exec(path):
    """Of `apptainer exec IMAGE python3 -c pass`."""
    command = ["apptainer", "--quiet", "exec", path, "python3", "-c", "pass"]

    def act():
        for _ in range(BY_ITSELF):
            subprocess.run(command, cwd="/", capture_output=True, check=True)

    return cpu_of(act) / BY_ITSELF
