"""The worker's process, behind a real router, scripted engines, real boxes and real verifiers."""

import asyncio
import json
import signal
import time

from prorl_cli.trajectory import Cancel, Drain, ErrorClass, Purpose, StopReason, check_trajectory
from tests.rollout_bench import bench, gone, until

SUM = {"domain": "math", "source": "reasoning_gym:chain_sum"}


def tasks(*handlers):
    return [SUM, *({**SUM, "handler": f"tests.rollout_handlers:{name}"} for name in handlers)]


def test_groups_finish_with_whole_records_and_a_failure_of_one_member_is_its_own(tmp_path):
    async def scenario():
        # Short, for the member that hangs in EVAL is waited for; long enough for verifiers of a busy machine.
        rollout = {"eval": {"slots": 2, "timeout": "6s"}}
        agent = {"renderer": "tiny", "temperature": 0.5}
        async with bench(tmp_path, {}, {}, tasks=tasks("Hanging", "Unsound"), rollout=rollout, agent=agent) as made:
            made.group(0, range(8))
            made.group(0, range(8))
            made.group(3, [0], purpose=Purpose.EVAL)
            made.group(1, [0], task=1)
            made.group(2, [0], task=2)
            records = await made.records(11)
            by_group = {group: [r for r in records if r.group == group] for group in range(4)}

            assert sorted(r.member for r in by_group[0]) == list(range(8)), "asked twice, done once"
            for record in (*by_group[0], *by_group[3]):
                assert record.error_class is None and record.stop_reason == StopReason.ANSWERED
                assert not check_trajectory(record, 106) and record.authored == 9
                assert [(c.tool, c.output, c.outcome) for c in record.tool_calls] == [("calculator", "3", "ok")]
                assert record.answer == "3" and record.engine.startswith("engine-") and record.worker == made.name
                assert record.timings.run > record.timings.llm > 0 < record.timings.tool
            assert by_group[3][0].purpose == Purpose.EVAL
            assert [by_group[group][0].sampling for group in (0, 3)] == [{"temperature": 0.5}, {"temperature": 1.0}]

            assert by_group[1][0].error_class == ErrorClass.VERIFIER
            assert by_group[2][0].error_class == ErrorClass.INTERNAL

            counters = [await made.script(number) for number in range(2)]
            seeds = [seed for counter in counters for seed in counter["seeds"]]
            assert len(seeds) == len(set(seeds)) == 22, "every turn of every member samples by its own seed"
            assert all(counter["served"] >= 4 for counter in counters)

    asyncio.run(scenario())


def test_cancelled_members_end_within_two_seconds_a_term_ends_all_and_what_is_finished_stays(tmp_path):
    async def scenario():
        async with bench(tmp_path, {}, tasks=tasks("Boxed")) as made:
            made.group(0, range(3))
            await made.records(3)
            idle = await made.children_at_rest()
            await made.script(0, hang=True)
            made.group(1, range(5), task=1)
            await made.in_flight(5)
            assert len(made.children()) > idle
            asked = time.monotonic()
            made.ask(
                *(
                    Cancel(group=group, purpose=Purpose.TRAIN, members=(0, 1, 2, 3, 4), reason="test")
                    for group in (0, 1)
                )
            )
            while (counters := await made.script(0))["aborted"] < 5 or len(made.children()) > idle:
                assert time.monotonic() - asked < 2.0, (counters, made.children())
                await asyncio.sleep(0.02)
            await made.script(0, hang=False)
            made.group(2, [0])
            assert sorted((r.group, r.member) for r in await made.records(4)) == [(0, 0), (0, 1), (0, 2), (2, 0)]

            await made.script(0, hang=True)
            made.group(3, range(5), task=1)
            await made.in_flight(5)
            await ends_cleanly(made, within=5.0)
            assert len(made.finished()) == 4

    asyncio.run(scenario())


def test_a_drain_finishes_what_runs_and_a_term_commits_it_and_ends_cleanly(tmp_path):
    async def scenario():
        async with bench(tmp_path, {"token_s": 0.1}, tasks=tasks("Boxed"), rollout={"run": {"slots": 4}}) as made:
            made.group(0, range(4))
            await made.in_flight(4)
            made.ask(Drain(deadline_s=20.0, reason="test"))
            made.group(1, range(4))
            records = await made.records(4)
            assert [r.group for r in records] == [0] * 4
            await ends_cleanly(made, within=5.0)
            assert len(made.finished()) == 4

    asyncio.run(scenario())


async def ends_cleanly(made, within):
    """SIGTERM: exit code 0 soon, and nothing that the worker started is left."""
    left, asked = made.children(), time.monotonic()
    made.worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(made.worker.wait, 20) == 0, made.worker.log.read_text()
    assert time.monotonic() - asked < within
    await until(lambda: gone(left), 5, lambda: f"left behind: {left}")


def test_a_task_with_tests_is_graded_in_a_box_with_programs_and_the_record_says_why(tmp_path):
    """The scripted policy answers 3, whatever it is asked: right for one of the two tasks."""
    file = tmp_path / "tasks.jsonl"
    rows = [
        {
            "question": f"Write {wanted} into number.",
            "answer_file": "number",
            "tests": {"cases": [{"command": ["cat", "number"], "stdout": f"{wanted}\n"}], "timeout": 30},
        }
        for wanted in (3, 4)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = {"held_out": str(file)}

    async def scenario():
        code = {"domain": "code", "source": str(file), "options": held_out}
        async with bench(tmp_path, {}, tasks=[code], agent={"renderer": "tiny"}) as made:
            for group in (0, 1):
                made.group(group, [0], purpose=Purpose.EVAL)
            records = {record.group: record for record in await made.records(2)}
            assert [records[n].error for n in (0, 1)] == ["", ""]
            assert [records[n].reward for n in (0, 1)] == [1.0, 0.0]
            assert records[0].verdict == "1 of 1 tests passed"
            assert records[1].verdict.startswith("0 of 1 tests passed; case 0: another output: '3")
            assert {record.image for record in records.values()} == {"bwrap"}

    asyncio.run(scenario())
