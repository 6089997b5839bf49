"""The stateful bash through a real box: the same promises behind each runtime's walls."""

import asyncio

import pytest

from tests.sandbox_kit import RUNTIMES, one_box

everywhere = pytest.mark.parametrize("runtime", RUNTIMES)
behind_walls = pytest.mark.parametrize("runtime", RUNTIMES[:1] + RUNTIMES[2:])
"""What these do would befall the whole machine in a `process` box."""


async def run(box, command, timeout_s=20.0):
    return await box.call("bash", {"command": command}, timeout_s)


def in_a_box(runtime, scratch, story, **settings):
    async def play():
        async with one_box(runtime, scratch, serve=("bash",), unsafe=runtime == "process", **settings) as box:
            await story(box)

    asyncio.run(play())


@everywhere
def test_a_shell_keeps_its_state_over_exits_and_timeouts(runtime, tmp_path):
    async def story(box):
        assert (await run(box, "mkdir -p work; cd work; x=1; say() { echo said $x; }")).outcome == "ok"
        home = (await run(box, "pwd")).output.strip()
        assert (await run(box, "say; exit 3")).facts == {"exit_code": 3, "cwd": home, "restarted": True, "omitted": 0}
        assert (await run(box, "say; pwd")).output == f"said 1\n{home}\n"
        late = await run(box, "echo part; sleep 100", 0.5)
        assert (late.outcome, late.output.splitlines()[0], late.facts["restarted"]) == ("timeout", "part", False)
        assert (await run(box, "say; kill -9 $$")).facts["exit_code"] == 137
        assert (await run(box, "say")).output == "said 1\n"

    in_a_box(runtime, tmp_path, story)


@everywhere
def test_a_background_job_lives_from_call_to_call_and_a_timed_out_tree_does_not(runtime, tmp_path):
    async def story(box):
        assert (await run(box, "sleep 1000 & echo $! > job")).outcome == "ok"
        late = await run(
            box,
            "(setsid sleep 999 &) ; trap '' INT; sh -c 'trap \"\" INT TERM; echo $$ > own; while :; do sleep 1; done'",
            0.5,
        )
        assert late.outcome == "timeout"
        assert (
            await run(box, "kill -0 $(cat job) && echo lives; kill -0 $(cat own) 2>/dev/null || echo gone")
        ).output == "lives\ngone\n"

    in_a_box(runtime, tmp_path, story)


@everywhere
def test_a_hundred_megabytes_of_output_are_bounded_and_counted(runtime, tmp_path):
    async def story(box):
        results = [await run(box, "head -c 100000000 /dev/zero", 60) for _ in range(3)]
        assert {result.facts["omitted"] + result.output.count("\0") for result in results} == {100_000_000}
        pipe = min([(await run(box, "head -c 100000000 /dev/zero | cat >/dev/null", 60)).seconds for _ in range(3)])
        assert min(result.seconds for result in results) < max(2, 4 * pipe)  # a busy machine's own pipes are slower

    in_a_box(runtime, tmp_path, story)


@everywhere
def test_memory_over_the_limit_ends_the_command_and_the_shell_goes_on(runtime, tmp_path):
    async def story(box):
        assert (await run(box, "x=1")).outcome == "ok"
        result = await run(
            box, "echo part; python3 -c 'x = bytearray(600 << 20); import time; time.sleep(30)'; echo after", 40
        )
        assert result.outcome == "limit:memory", result
        assert result.output.startswith("part\n")
        assert (await run(box, "echo $x")).output == "1\n"

    in_a_box(runtime, tmp_path, story, memory="256MiB")


@behind_walls
def test_processes_without_end_are_ended_and_the_shell_goes_on(runtime, tmp_path):
    async def story(box):
        assert (await run(box, "x=1")).outcome == "ok"
        bomb = await run(box, "f() { f | f & }; f; sleep 20", 30)
        assert bomb.outcome in ("limit:processes", "limit:cpu", "limit:memory", "timeout"), bomb
        after = await run(box, "echo $x", 30)
        assert after.output.startswith("1\n"), (bomb, after)

    in_a_box(runtime, tmp_path, story, processes=64)


@behind_walls
@pytest.mark.parametrize("killer", ["sh -c 'kill -9 -1'", "pkill -9 . ; kill -9 $$", "kill -9 1 $PPID; kill -9 $$"])
def test_killing_everything_in_sight_costs_the_shell_alone(runtime, tmp_path, killer):
    async def story(box):
        assert (await run(box, "x=1; sleep 1000 &")).outcome == "ok"
        result = await run(box, f"{killer}; sleep 1")
        assert (result.outcome, result.facts["restarted"]) == ("ok", True), result
        assert (await run(box, "echo $x")).output == "1\n"

    in_a_box(runtime, tmp_path, story)


@behind_walls
def test_removing_all_that_can_be_removed_costs_no_more_than_the_state(runtime, tmp_path):
    async def story(box):
        assert (await run(box, "rm -rf /tmp/* /tmp/.[!.]* ~/* ~/.[!.]* 2>/dev/null; cd; echo on")).output == "on\n"
        assert (await run(box, "echo still; exit 2")).output.startswith("still\n")
        assert (await run(box, "echo on")).output == "on\n"

    in_a_box(runtime, tmp_path, story)


@behind_walls
def test_a_full_disk_leaves_a_shell_that_can_tidy_up(runtime, tmp_path):
    async def story(box):
        await run(box, "cd /dev/shm; head -c 10G /dev/zero > full 2>/dev/null", 30)
        await run(box, "cd /tmp; head -c 10G /dev/zero > full 2>/dev/null", 30)
        assert "on\n" in (await run(box, "rm -f /tmp/full /dev/shm/full; echo on")).output
        assert (await run(box, "echo on")).output == "on\n"

    in_a_box(runtime, tmp_path, story, memory="256MiB")
