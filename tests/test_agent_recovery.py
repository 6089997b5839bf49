"""A box that dies by nobody's doing costs an episode nothing but time, and nobody's clock that."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from prorl_cli.agent import Call, Limits, Tool, ToolBox, load_renderer, tools
from prorl_cli.agent.recovery import REPLAYS
from prorl_cli.agent.tiny import END, encode
from prorl_cli.errors import InfraError
from prorl_cli.rollout.clock import Clocks
from prorl_cli.sandbox.boxed.processes import parent_of
from prorl_cli.trajectory import ErrorClass, StopReason
from tests.agent_parts import Boxes, Result, ScriptedPolicy, whole_episode
from tests.sandbox_kit import box_processes, opened, zygote_of

STEPS = 20

STEP = """
import hashlib, pathlib, time
state = pathlib.Path("state")
before = state.read_text() if state.exists() else ""
state.write_text(before + "%d\\n")
time.sleep(0)
out = hashlib.sha256(state.read_bytes()).hexdigest()
"""
"""Each step's output depends on every step before it."""


@pytest.fixture(autouse=True)
def probe_is_a_tool(monkeypatch):
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    monkeypatch.setitem(tools.TOOLS, "probe", Tool(name="probe", description="", parameters=parameters))


def step(number):
    return Call(tool="probe", arguments={"code": STEP % number})


def slowly(text):
    """Sleeps at its end, by that name."""
    named = "pathlib.Path('/proc/self/comm').write_text('sleep'); time.sleep(60)"
    return text.replace("time.sleep(0)", named).replace("; true", "; sleep 60")


class Doomed:
    """A factory whose first box loses its first process to SIGKILL in the middle of call number `at`, when that has
    changed the state and takes long to say so."""

    def __init__(self, factory, at):
        self.factory, self.left, self.started = factory, at, 0
        self.zygote = zygote_of(box_processes()).pid

    async def start(self):
        self.started += 1
        self.box = await self.factory.start()
        return self if self.started == 1 else self.box

    async def call(self, tool, arguments, timeout_s):
        self.left -= 1
        if self.left:
            return await self.box.call(tool, arguments, timeout_s)
        slow = {key: slowly(text) for key, text in arguments.items()}
        running = asyncio.ensure_future(self.box.call(tool, slow, 60.0))
        os.kill(await asleep(self.zygote), signal.SIGKILL)
        return await running

    async def close(self):
        await self.box.close()


async def asleep(zygote):
    """The first process of the box in which something sleeps."""
    for _ in range(1000):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if Path("/proc", entry, "comm").read_text() == "sleep\n" and (first := child_above(zygote, int(entry))):
                    return first
        await asyncio.sleep(0.01)
    raise AssertionError("no box sleeps")


def child_above(zygote, pid):
    """Of the processes above `pid` the one that the zygote has started; 0 where there is none."""
    while (parent := parent_of(pid)) not in (0, zygote):
        pid = parent
    return pid if parent else 0


async def episode(factory):
    """Twenty steps, and what they left behind."""
    tools = ToolBox(factory, ["probe"], 20.0)
    results = [await tools.call(step(number)) for number in range(STEPS)]
    state = await tools.call(Call(tool="probe", arguments={"code": "out = open('state').read()"}))
    await tools.close()
    return [(result.outcome, result.output) for result in [*results, state]], tools.box


@pytest.mark.soak
@pytest.mark.parametrize("runtime", ["bwrap", "process"])
def test_a_box_killed_at_any_of_twenty_steps_leaves_the_same_outputs_and_the_same_state(runtime, tmp_path):
    async def scenario():
        async with opened(runtime, tmp_path) as factory:
            wanted, _ = await episode(factory)
            assert len({output for _, output in wanted}) == STEPS + 1
            for at in range(1, STEPS + 1):
                doomed = Doomed(factory, at)
                seen, box = await episode(doomed)
                assert seen == wanted, f"killed at step {at}"
                assert (doomed.started, box.replays, box.diverged) == (2, 1, False)

    asyncio.run(scenario())


SHELL_STEP = (
    "x=$((x * 31 + {0})); mkdir d{0}; cd d{0}; f{0}() {{ echo f{0}; }}; echo $x >> ~/log; pwd; cksum < ~/log; true"
)


async def shell_episode(factory):
    """Variables, folder, functions and files, each step on top of the ones before it."""
    tools = ToolBox(factory, ["bash"], 20.0)
    commands = [SHELL_STEP.format(number) for number in range(STEPS)]
    results = [await tools.call(Call(tool="bash", arguments={"command": command})) for command in commands]
    asked = "echo $x; pwd; cat ~/log; " + "; ".join(f"f{number}" for number in range(STEPS))
    state = await tools.call(Call(tool="bash", arguments={"command": asked}))
    await tools.close()
    return [(result.outcome, result.output) for result in [*results, state]], tools.box


def test_a_shell_that_dies_at_any_of_twenty_steps_is_had_again_with_all_its_state(tmp_path):
    async def scenario():
        async with opened("bwrap", tmp_path, serve=("bash",)) as factory:
            wanted, _ = await shell_episode(factory)
            assert wanted[-1][1].split()[-1] == f"f{STEPS - 1}"
            for at in range(1, STEPS + 1):
                seen, box = await shell_episode(Doomed(factory, at))
                assert seen == wanted, f"killed at step {at}"
                assert (box.replays, box.diverged) == (1, False)

    asyncio.run(scenario())


def test_an_output_that_differs_in_the_fresh_box_marks_the_episode_diverged():
    died = InfraError(ErrorClass.SANDBOX, "killed from outside")
    boxes = Boxes([Result("1"), Result("2"), died, Result("1"), Result("other"), Result("3")])
    tools = ToolBox(boxes, ["probe"], 5.0)

    async def scenario():
        return [(await tools.call(step(number))).output for number in range(3)]

    assert asyncio.run(scenario()) == ["1", "2", "3"], "the policy is told what it was told"
    assert (tools.box.replays, tools.box.diverged, boxes.started) == (1, True, 2)


def test_what_the_policy_did_to_its_box_is_done_again_and_is_no_divergence():
    died = InfraError(ErrorClass.SANDBOX, "killed from outside")
    hit = Result("error: the tool did not finish within 5 s", "timeout")
    boxes = Boxes([Result("1"), hit, died, Result("1"), hit, Result("3")])
    tools = ToolBox(boxes, ["probe"], 5.0)

    async def scenario():
        return [(await tools.call(step(number))).outcome for number in range(3)]

    assert asyncio.run(scenario()) == ["ok", "timeout", "ok"]
    assert (tools.box.replays, tools.box.diverged) == (1, False)
    assert [call for _, call in boxes.calls[3:]] == [call for _, call in boxes.calls[:3]]


def test_a_box_that_the_policy_killed_is_not_replaced():
    boxes = Boxes([Result("1"), Result("error: the box died of SIGSEGV", "dead")])
    tools = ToolBox(boxes, ["probe"], 5.0)

    async def scenario():
        return [(await tools.call(step(number))).outcome for number in range(3)]

    assert asyncio.run(scenario()) == ["ok", "dead", "dead"]
    assert boxes.started == 1


def test_a_box_that_dies_again_and_again_is_an_error_once_the_budget_is_spent():
    boxes = Boxes([Result("1"), InfraError(ErrorClass.SANDBOX, "killed from outside")])
    tools = ToolBox(boxes, ["probe"], 5.0)

    async def scenario():
        await tools.call(step(0))
        for _ in range(2):
            with pytest.raises(InfraError, match=r"killed from outside|gone"):
                await tools.call(step(1))

    asyncio.run(scenario())
    assert boxes.started == boxes.closed == 1 + REPLAYS, "and no blank box is taken for the lost one"


def test_only_the_death_of_a_box_is_recovered_from():
    boxes = Boxes([InfraError(ErrorClass.INTERNAL, "a defect")])
    with pytest.raises(InfraError, match="defect"):
        asyncio.run(ToolBox(boxes, ["probe"], 5.0).call(step(0)))
    assert boxes.started == 1


def test_neither_the_lost_call_nor_the_replay_is_charged_to_anybody():
    """Two calls of 0.2 s; the second is lost after 0.2 s and replayed with the first: 0.4 s are nobody's."""

    async def slow():
        await asyncio.sleep(0.2)
        return Result("1")

    async def lost():
        await asyncio.sleep(0.2)
        raise InfraError(ErrorClass.SANDBOX, "killed from outside")

    async def scenario():
        clocks = Clocks()
        boxes = Boxes([slow, lost, slow, slow])
        tools = ToolBox(boxes, ["probe"], 5.0, clocks.recovering)
        began = time.monotonic()
        async with clocks.start(0.6) as clock:
            await tools.call(step(0))
            await tools.call(step(1))
        assert time.monotonic() - began >= 0.8
        assert 0.4 <= clock.spent_s < 0.55
        assert 0.4 <= tools.box.lost_s < 0.55
        assert clocks.queued_s == 0.0

    asyncio.run(scenario())


def test_the_loop_tells_the_policy_nothing_of_a_lost_box_and_charges_its_tools_nothing():
    async def lost():
        await asyncio.sleep(0.3)
        raise InfraError(ErrorClass.SANDBOX, "killed from outside")

    calculate = [5, *encode("1+2"), 6]
    boxes = Boxes([Result("3"), lost, Result("3"), Result("4")])
    tools = ToolBox(boxes, ["calculator"], 5.0)
    policy = ScriptedPolicy([calculate, calculate, [*encode("4"), END]])
    limits = Limits(max_turns=4, max_tokens=200)
    prompt = [{"role": "user", "content": "?"}]
    result = asyncio.run(whole_episode(policy, load_renderer("tiny", None), prompt, tools, limits, 1))
    assert [call.output for call in result.tool_calls] == ["3", "4"]
    assert result.stop_reason == StopReason.ANSWERED and len(policy.prompts) == 3
    assert result.tool_s < 0.2 and max(call.seconds for call in result.tool_calls) < 0.2
    assert boxes.started == boxes.closed == 2
