"""One process of a run: announced while it lives, heard when it rings, fenced by a newer attempt, ended in order."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from prorl_cli.errors import ProrlError
from prorl_cli.recipe import Recipe
from prorl_cli.role.entry import own_devices
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt, read_endpoints
from prorl_cli.wire import certificate

RECIPE = {
    "name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny"},
    "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
}  # fmt: skip

BODIES = """
import sys
from prorl_cli.errors import UserError
from prorl_cli.role import main

async def wait(role):
    await role.serve([])
    role.hear("ringer")
    role.announce(state="ready", version=7, answers=42)
    with role.waiting("a ring"):
        while not role.stopping.is_set():
            await role.nap(60)
            role.metrics.add("woken")

async def ring(role):
    await role.serve([])
    while not role.stopping.is_set():
        role.doorbell.ring()
        await role.nap(0.2)

async def wrong(role):
    raise UserError("the disk is full")

async def defect(role):
    role.spawn(later())
    await role.stopping.wait()

async def later():
    raise RuntimeError("a defect")

kind = sys.argv.pop(1)
main(kind, {"waiter": wait, "ringer": ring, "wrong": wrong, "defect": defect}[kind])
"""


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.secure(*certificate.make())
    claim_attempt(run, {})
    run.resolved(1).write_text(Recipe.model_validate_json(json.dumps(RECIPE)).model_dump_json())
    run.resolved(2).write_text(run.resolved(1).read_text())
    return run


@pytest.fixture
def start(run, tmp_path):
    script = tmp_path / "bodies.py"
    script.write_text(BODIES)
    started = []

    def start(kind):
        child = subprocess.Popen(
            [sys.executable, str(script), kind, str(run.root)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def until(condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)
    return found


def endpoint(run, role, state):
    return next((e for e in read_endpoints(run) if e.role == role and e.state == state), None)


def test_a_role_announces_itself_beats_and_ends_in_order(run, start):
    child = start("waiter")
    first = until(lambda: endpoint(run, "waiter", "ready"))
    assert (first.version, first.facts["answers"], first.waiting, first.pid) == (7, 42, "a ring", child.pid)
    assert first.url.startswith("https://127.0.0.1:")
    until(lambda: endpoint(run, "waiter", "ready").beat > first.beat)
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0
    assert endpoint(run, "waiter", "ended")


def test_a_ring_wakes_a_role_that_hears_its_peer(run, start):
    waiter, _ = start("waiter"), start("ringer")
    until(
        lambda: run.metrics.glob("waiter-*") and "woken" in "".join(p.read_text() for p in run.metrics.glob("waiter-*"))
    )
    assert waiter.poll() is None


def test_a_newer_attempt_ends_an_older_process_with_exit_code_3(run, start):
    child = start("waiter")
    until(lambda: endpoint(run, "waiter", "ready"))
    claim_attempt(run, {})
    assert child.wait(15) == 3
    assert "superseded" in child.stderr.read()


def test_a_process_keeps_to_its_own_gpus_of_a_node():
    assert own_devices("0,1", "4,5,6,7") == "4,5" and own_devices("3", "GPU-a,GPU-b,GPU-c,GPU-d") == "GPU-d"
    assert own_devices("2,3", "") == "2,3"
    with pytest.raises(ProrlError, match=r"GPU number 2 .* only 0,1"):
        own_devices("1,2", "0,1")


def test_bad_input_is_one_line_and_exit_code_2(start):
    child = start("wrong")
    _, errors = child.communicate(timeout=15)
    assert child.returncode == 2
    assert errors.count("\n") == 1 and "the disk is full" in errors


def test_a_defect_beside_the_body_ends_the_role_loudly(start):
    child = start("defect")
    _, errors = child.communicate(timeout=15)
    assert child.returncode == 1
    assert "RuntimeError: a defect" in errors
