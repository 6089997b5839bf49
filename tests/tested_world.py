"""Tasks graded by tests, played with a real box for the policy and a real fresh one for the grader."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from prorl_cli.agent import Call, Episode, Limits, ToolBox
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks import Job, load_handler
from prorl_cli.tasks.jsonl import read_items
from prorl_cli.trajectory import StopReason, TaskRef
from tests.sandbox_kit import opened

START = "def add(a, b):\n    raise NotImplementedError\n"
RIGHT = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 7\n"
CALLS = {
    "cases": [
        {"call": "solution:add", "arguments": [1, 2], "returns": 3},
        {"call": "solution:add", "arguments": [-5, 5], "returns": 0},
    ],
    "timeout": 20,
}
TEST_FILE = """\
import unittest

from solution import add


class TestAdd(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(1, 2), 3)

    def test_zero(self):
        self.assertEqual(add(-5, 5), 0)


def test_plain():
    assert add(2, 2) == 4
"""
IDS = [f"test_add.py::{name}" for name in ("TestAdd::test_small", "TestAdd::test_zero", "test_plain")]
SUITE = {"suite": {"runner": "unittest", "ids": IDS}, "files": {"test_add.py": TEST_FILE}, "timeout": 20}


def row(tests, **fields):
    plain = {"question": "Write add.", "files": {"solution.py": START}, "editable": ["solution.py"], "tests": tests}
    return {key: value for key, value in (plain | fields).items() if value is not None}


@asynccontextmanager
async def boxes(scratch, runtime="bwrap", **settings):
    unsafe = {"unsafe": True} if runtime == "process" else {}
    async with opened(runtime, scratch, serve=("python",), **unsafe, **settings) as factory:
        yield factory


def job_of(scratch, factory, task, tools=("python",)):
    path = scratch / "tasks.jsonl"
    path.write_text(json.dumps(task) + "\n")
    (item,) = read_items(path)
    return Job(
        ref=TaskRef(task=0, domain="code", index=0), item=item, seed=1, session="s", policy=None, renderer=None,
        tools=ToolBox(factory, tools, 20.0), limits=Limits(max_turns=9, max_tokens=9), verifiers=None,
        eval_s=600.0,
    )  # fmt: skip


def handler():
    return load_handler(TaskSpec(domain="code", source="tasks.jsonl"))


async def play(scratch, factory, task, *commands, answer="done", stop=StopReason.ANSWERED):
    """INIT, the policy's bash commands, EVAL; the score."""
    job = job_of(scratch, factory, task)
    await handler().init(job)
    for command in commands:
        code = f"import subprocess; subprocess.run(['bash', '-c', {command!r}])"
        await job.tools.call(Call(tool="python", arguments={"code": code}))
    episode = Episode(sequences=(), tool_calls=(), stop_reason=stop, answer=answer, llm_s=0.0, tool_s=0.0)
    return await handler().eval(job, episode)


def write(path, text):
    """A bash command that writes a file."""
    return f"cat > {path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"


def score(scratch, task, *commands, runtime="bwrap", **ending):
    async def scenario():
        async with boxes(scratch, runtime) as factory:
            return await play(scratch, factory, task, *commands, **ending)

    return asyncio.run(scenario())


class World:
    """One factory for many tests: small boxes, so that floods end soon."""

    def __init__(self, scratch):
        self._scratch, self._runner = scratch, asyncio.Runner()
        self._boxes = boxes(scratch, memory="128MiB", processes=32)
        self.factory = self.run(self._boxes.__aenter__())

    def run(self, coroutine):
        return self._runner.run(coroutine)

    def score(self, task, *commands, **ending):
        return self.run(play(self._scratch, self.factory, task, *commands, **ending))

    def close(self):
        self.run(self._boxes.__aexit__(None, None, None))
        self._runner.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("tested"))
    yield made
    made.close()
