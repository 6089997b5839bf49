"""The keeper of a server in another process: whatever dies, nothing of the server stays."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from prorl_cli.engine.keeper import KEEPER

FAMILY = """
import multiprocessing, os, sys, time
from multiprocessing import shared_memory

def work(name):
    os.setsid()
    print(name, os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    memory = shared_memory.SharedMemory(create=True, size=64)
    child = multiprocessing.get_context("spawn").Process(target=work, args=(memory.name,))
    child.start()
    {then}
    time.sleep(600)
"""
"""A server with shared memory and a child that left its process group."""


class Kept:
    def __init__(self, tmp_path, then="pass"):
        script = tmp_path / "server.py"
        script.write_text(FAMILY.replace("{then}", then))
        self.folder = tmp_path / "scratch"
        (self.folder / "inside").mkdir(parents=True)
        self.keeper = subprocess.Popen(
            [sys.executable, "-I", KEEPER, str(self.folder), sys.executable, str(script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True,
        )  # fmt: skip
        self.memory, self.pid = self.keeper.stdout.readline().split()
        self.family = psutil.Process(self.keeper.pid).children(recursive=True)
        assert int(self.pid) in [process.pid for process in self.family]

    def gone(self):
        return not psutil.wait_procs(self.family, timeout=10)[1]

    def close(self):
        for process in [*self.family, psutil.Process(self.keeper.pid)] if self.keeper.poll() is None else self.family:
            if process.is_running():
                process.kill()
        self.keeper.wait(10)
        Path("/dev/shm", self.memory).unlink(missing_ok=True)  # killed with its tracker
        self.keeper.stdin.close()
        self.keeper.stdout.close()


@pytest.fixture
def kept(tmp_path):
    made = []

    def make(**arguments):
        made.append(Kept(tmp_path, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def memory_is_gone(name, seconds=5):
    until = time.monotonic() + seconds
    while (
        found := subprocess.run(["ls", "/dev/shm"], capture_output=True, text=True).stdout.split()
    ) and name in found:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_when_its_owner_is_gone_so_is_everything_below_it_with_its_memory_and_its_folder(kept):
    one = kept()
    one.keeper.stdin.close()
    assert one.keeper.wait(10) == 128 + signal.SIGKILL
    assert one.gone() and not one.folder.exists() and memory_is_gone(one.memory)


def test_when_the_server_is_killed_so_is_what_it_started(kept):
    one = kept()
    psutil.Process(one.keeper.pid).children()[0].kill()
    assert one.keeper.wait(10) == 128 + signal.SIGKILL
    assert one.gone() and not one.folder.exists() and memory_is_gone(one.memory)


def test_a_server_that_ends_by_itself_gives_its_code(kept):
    one = kept(then="time.sleep(1); os._exit(7)")
    assert one.keeper.wait(20) == 7
    assert one.gone() and not one.folder.exists()


def test_a_killed_keeper_takes_the_server_with_it(kept):
    one = kept()
    server = psutil.Process(one.keeper.pid).children()[0]
    one.keeper.kill()
    assert not psutil.wait_procs([server], timeout=10)[1]


def test_signals_to_the_whole_job_are_the_servers_to_obey_and_the_keeper_goes_on(kept):
    one = kept()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        one.keeper.send_signal(number)
    time.sleep(0.3)
    assert one.keeper.poll() is None
    psutil.Process(one.keeper.pid).children()[0].terminate()
    assert one.keeper.wait(10) == 128 + signal.SIGTERM
    assert one.gone()
