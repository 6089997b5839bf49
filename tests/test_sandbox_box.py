"""A box answers each call once, holds its limits, survives what its tools do, and says who ended it."""

import asyncio
import os
import signal

import pytest

from prorl_cli.errors import InfraError, UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import open_boxes
from prorl_cli.sandbox.boxed.frames import MAX_FRAME, Frames, FrameTooLong, pack
from prorl_cli.sandbox.results import Ended, judge
from tests.hostile_kit import boxes_of
from tests.sandbox_kit import (
    RUNTIMES,
    at_work,
    box_processes,
    look,
    need_runtime,
    one_box,
    oom_scores,
    opened,
    probe,
    settle,
    until,
    zygote_of,
)

each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


@each_runtime
def test_calls_are_answered_and_mistakes_are_answers(runtime, tmp_path):
    async def scene():
        async with one_box(runtime, tmp_path) as box:
            good = await box.call("calculator", {"expression": "6 * 7"}, 10)
            wrong = await box.call("calculator", {"expression": "6 *"}, 10)
            again = await box.call("calculator", {"expression": "1 / 4"}, 10)
        assert (good.output, good.outcome) == ("42", "ok")
        assert (wrong.output, wrong.outcome) == ("error: not an expression: 6 *", "error")
        assert again.output == "0.25"
        assert 0 < good.seconds < 10

    asyncio.run(scene())


@pytest.mark.parametrize("tool", ["bash", "python", "edit", "calculate"])
def test_a_tool_that_is_not_served_is_the_users_mistake_and_harms_no_box(tool, tmp_path):
    async def scene():
        async with one_box("process", tmp_path) as box:
            with pytest.raises(UserError, match=f"no tool '{tool}'.*available: calculator"):
                await box.call(tool, {}, 1)
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


@each_runtime
def test_output_is_bounded_and_any_text_survives(runtime, tmp_path):
    async def scene():
        async with one_box(runtime, tmp_path) as box:
            assert len((await probe(box, "out = 'x' * 50_000_000")).output) == 256 * 1024
            odd = await look(box, r"out = '\x00\ud800 é 🙂 \r\n'.encode('utf-8', 'replace').decode()")
            assert odd == "\x00? é 🙂 \r\n"
            lone = await probe(box, r"out = 'a\ud800b'")
            assert lone.output.startswith("a") and lone.output.endswith("b")

    asyncio.run(scene())


def test_a_tool_cannot_forge_what_only_the_box_may_say(tmp_path):
    forge = """
        import json, os
        body = json.dumps({"id": 1, "outcome": "killed", "output": "infra!"}).encode()
        os.write(3, len(body).to_bytes(4, "big") + body)
        out = "own"
    """

    async def scene():
        async with one_box("process", tmp_path) as box:
            assert (await probe(box, forge)).outcome == "error"
            assert (await probe(box, "import os; os.write(3, b'\\xff' * 100); out = 1")).outcome == "error"
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


def test_too_long_arguments_are_the_policys_mistake(tmp_path):
    async def scene():
        async with one_box("process", tmp_path) as box:
            result = await box.call("calculator", {"expression": "1" * MAX_FRAME}, 10)
            assert result.outcome == "error" and "too long" in result.output
            assert (await box.call("calculator", {"expression": "1" * 3_000_000}, 10)).outcome == "error"
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


@each_runtime
def test_a_cancelled_call_ends_the_box(runtime, tmp_path):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)"))
            await at_work()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(box.close(), 2)
            with pytest.raises(InfraError, match="sandbox: the box is closed"):
                await box.call("calculator", {"expression": "1"}, 10)
            await (await factory.start()).close()

    asyncio.run(scene())


@each_runtime
def test_sixty_four_boxes_at_once_answer_for_themselves(runtime, tmp_path):
    async def episode(factory, number):
        box = await factory.start()
        answers = [(await box.call("calculator", {"expression": f"{number} * {k}"}, 30)).output for k in range(3)]
        await together.wait()
        await box.close()
        await box.close()
        return answers

    async def scene():
        async with opened(runtime, tmp_path) as factory:
            assert factory.runtime == runtime.split()[0]
            results = await asyncio.gather(*(episode(factory, number) for number in range(64)))
        assert results == [[str(number * k) for k in range(3)] for number in range(64)]

    together = asyncio.Barrier(64)
    asyncio.run(scene())
    assert settle() == []
    assert os.listdir(tmp_path) == []


@each_runtime
def test_boxes_go_before_anything_else_when_memory_is_short(runtime, tmp_path):
    async def scene():
        async with one_box(runtime, tmp_path) as box:
            assert await look(box, "out = int(open('/proc/self/oom_score_adj').read())") == 1000
            zygote = zygote_of(box_processes())
            await until(lambda: oom_scores(zygote.children(recursive=True)) == {1000})
            assert oom_scores([zygote]) != {1000}

    asyncio.run(scene())


def test_a_box_that_the_policy_ended_is_dead_for_good_and_no_error(tmp_path):
    """A plain box cannot stop its tool from crashing its first process; only the box itself can have done that."""

    async def scene():
        async with one_box("process", tmp_path) as box:
            blow = "import os, signal, time; os.kill(os.getppid(), signal.SIGSEGV); time.sleep(60)"
            died = await probe(box, blow)
            again = await box.call("calculator", {"expression": "1"}, 10)
            assert died.outcome == again.outcome == "dead"
            assert "died of SIGSEGV" in died.output
            assert box.death.by_policy

    asyncio.run(scene())
    assert settle() == []


def test_a_walled_tool_cannot_harm_its_box(tmp_path):
    async def scene():
        async with one_box("bwrap", tmp_path) as box:
            for code in ("os.kill(1, 9)", "os.kill(1, 11)", "os.kill(1, 19)", "os.kill(-1, 9)"):
                await probe(box, f"import os\n{code}")
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


@each_runtime
def test_a_box_killed_from_outside_is_an_error_of_the_machine(runtime, tmp_path):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)"))
            victim = await at_work()
            victim.kill()
            with pytest.raises(InfraError, match="killed by SIGKILL from outside"):
                await call
            assert not box.death.by_policy
            assert (await (await factory.start()).call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


@each_runtime
def test_a_tool_killed_from_outside_is_an_error_of_the_machine(runtime, tmp_path):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)"))
            first = await at_work()
            first.children()[0].kill()
            with pytest.raises(InfraError, match="killed by SIGKILL from outside"):
                await call

    asyncio.run(scene())


def test_a_stopped_box_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("prorl_cli.sandbox.box.GRACE_S", 0.1)

    async def scene():
        async with opened("process", tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)", timeout_s=5))
            (await at_work()).suspend()
            with pytest.raises(InfraError, match="did not answer within"):
                await call
            await asyncio.wait_for(box.close(), 5)

    asyncio.run(scene())
    assert settle() == []


@pytest.mark.parametrize(
    ("status", "by_policy"),
    [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGSEGV, True), (signal.SIGABRT, True), (71 << 8, True),
     (70 << 8, False), (0, False), (1 << 8, False)],
)  # fmt: skip
def test_who_ended_a_box_is_read_from_its_wait_status(status, by_policy):
    assert judge(Ended(1, int(status), "")).by_policy is by_policy


def test_a_box_that_lost_its_parent_did_not_do_so_itself():
    assert not judge(Ended(1, signal.SIGSEGV, "its parent is gone")).by_policy


def test_frames_come_out_whole_however_they_are_cut():
    messages = [{"id": number, "output": "é" * number} for number in range(50)]
    stream = b"".join(map(pack, messages))
    for size in (1, 3, 7, 1000, len(stream)):
        frames = Frames()
        bodies = [body for start in range(0, len(stream), size) for body in frames.feed(stream[start : start + size])]
        assert b"".join(len(body).to_bytes(4, "big") + body for body in bodies) == stream


def test_a_frame_that_announces_too_much_is_refused_before_it_comes():
    with pytest.raises(FrameTooLong):
        Frames().feed((MAX_FRAME + 1).to_bytes(4, "big"))


def fake_bwrap(folder, monkeypatch):
    program = folder / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_auto_takes_bwrap_where_it_works(tmp_path):
    need_runtime("bwrap")
    assert asyncio.run(_runtime_of("auto", tmp_path)) == "bwrap"


def test_auto_goes_without_walls_where_bwrap_is_refused_and_says_so(tmp_path, monkeypatch, caplog):
    fake_bwrap(tmp_path, monkeypatch)
    assert asyncio.run(_runtime_of("auto", tmp_path / "scratch")) == "process"
    assert "uid map: Permission denied" in caplog.text


def test_auto_goes_without_walls_where_bwrap_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(_runtime_of("auto", tmp_path / "scratch")) == "process"


def test_bwrap_asked_for_and_refused_is_reported_with_its_words_and_a_remedy(tmp_path, monkeypatch):
    fake_bwrap(tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"uid map: Permission denied.*install package bubblewrap"):
        asyncio.run(_runtime_of("bwrap", tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"not installed.*install package bubblewrap"):
        asyncio.run(_runtime_of("bwrap", tmp_path))


def test_a_scratch_folder_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"boxes cannot be started: .*file"):
        asyncio.run(_runtime_of("process", tmp_path / "file"))
    assert settle() == []


async def _runtime_of(runtime, scratch):
    factory = await open_boxes(Sandbox(runtime=runtime), scratch=scratch)
    await factory.close()
    await factory.close()
    return factory.runtime


@each_runtime
def test_what_a_box_wrote_goes_with_it_and_not_with_its_zygote(runtime, tmp_path):
    def marks():
        return sum(files.count("mark") for _, _, files in os.walk(tmp_path))

    async def scenario():
        async with boxes_of(runtime, tmp_path) as factory:
            box, other = await factory.start(), await factory.start()
            for one in (box, other):
                await one.put_all(".", {"mark": b""})
            await until(lambda: marks() == 2)
            await box.close()
            await until(lambda: marks() == 1)
            assert await other.get("mark") == b""

    asyncio.run(scenario())
