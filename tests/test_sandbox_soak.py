"""Five hundred episodes in real boxes, by workers that are killed every fifty: nothing of them is left on the node."""

import asyncio
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from prorl_cli.sandbox import open_boxes, root
from tests.hostile_kit import on
from tests.killing import fork, wait
from tests.sandbox_bugs import EVERY
from tests.sandbox_kit import need_runtime, orphans_come_here, sandbox, settle

EPISODES, A_LIFE, AT_ONCE = 500, 50, 8
UNSAFE = {"process": {"unsafe": True}}


async def episode(factory, number):
    """What a policy does: files, programs that stay, state in two tools, a shell that it ends, a command too many."""
    box = await factory.start()
    calls = [
        ("bash", {"command": f"mkdir -p work && cd work && echo {number} > file && sleep 1000 & cd ~/work; cat file"}, "ok"),
        ("bash", {"command": "setsid sleep 1000 < file & mkfifo pipe; exit 3"}, "ok"),
        ("python", {"code": f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('socket-{number}')\n{number} * 2"}, "ok"),
        ("bash", {"command": "sleep 1000"}, "timeout"),
        ("python", {"code": f"assert s and {number} == int({number})"}, "ok"),
    ]  # fmt: skip
    for tool, arguments, outcome in calls:
        result = await box.call(tool, arguments, 0.2 if outcome == "timeout" else 120)
        assert result.outcome == outcome, result
    await box.close()


async def live(runtime, scratch, done):
    """A worker's life, until it is killed: a byte for every episode."""
    settings = sandbox(runtime, **UNSAFE.get(runtime, {}))
    factory = await open_boxes(settings, scratch=scratch, serve=("bash", "python"))

    async def episodes():
        while True:
            await episode(factory, os.getpid())
            os.write(done, b".")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(episodes())


def one_life(runtime, scratch):
    """Killed in the midst of its next episodes."""
    reader, writer = os.pipe()
    pid = fork(lambda: asyncio.run(live(runtime, scratch, writer)))
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        finished = sum(len(pipe.read(1)) for _ in range(A_LIFE))
    os.kill(pid, signal.SIGKILL)
    assert (finished, wait(pid)) == (A_LIFE, -signal.SIGKILL)


def traces(scratch):
    """All that could be left: mounts of boxes, sockets with a path, FUSE daemons, descriptors of this process."""
    unix = Path("/proc/net/unix").read_text().splitlines()
    fuse = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "fuse" in process.name() and process.uids().real == os.getuid():
                fuse.add(process.pid)
    return {
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(scratch) in line],
        "sockets": [line for line in unix if str(scratch) in line or "socket-" in line],
        "daemons": fuse,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared memory": sorted(os.listdir("/dev/shm")),
        "temporary files": sorted(os.listdir(tempfile.gettempdir())),
    }


@pytest.mark.soak
@on(*EVERY)
def test_five_hundred_episodes_of_workers_that_are_killed_leave_nothing(runtime, tmp_path, monkeypatch):
    need_runtime(runtime)
    scratch, temporary = tmp_path / "scratch", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    root.find_python(root.interpreter())
    before = traces(scratch)
    with orphans_come_here():
        for _ in range(EPISODES // A_LIFE):
            one_life(runtime, scratch)
            assert settle(within_s=30) == []
        asyncio.run(_open_and_close(runtime, scratch))
        assert settle() == []
    assert list(scratch.glob("boxes-*")) == []
    assert traces(scratch) == before


async def _open_and_close(runtime, scratch):
    """The next worker of the node: it tidies up after those that could not."""
    settings = sandbox(runtime, **UNSAFE.get(runtime, {}))
    factory = await open_boxes(settings, scratch=scratch, serve=("bash", "python"))
    await factory.close()
