"""Group commit: few fsyncs for many records, nothing visible before it is durable, a refused record is a named one."""

import asyncio

from prorl_cli.rollout.commit import EVERY_S, Committer
from prorl_cli.spool.trajectories import TrajectoryFollower, TrajectoryWriter, read_trajectory
from prorl_cli.trajectory import ErrorClass, Purpose, Sequence, StopReason, TaskRef, Trajectory, VersionSpan
from tests.run_parts import make_run

VOCABULARY = 16


def trajectory(member, token=3, **changes):
    spans = (VersionSpan(version=0, start=1, end=2),)
    fields = {
        "group": 0, "member": member, "tried": 0, "purpose": Purpose.TRAIN,
        "task": TaskRef(task=0, domain="math", index=0),
        "sequences": (Sequence.pack([1, token], [0, 1], [0.0, -0.5], spans),), "sampling": {}, "tool_calls": (),
        "reward": 1.0, "reward_parts": {}, "stop_reason": StopReason.ANSWERED, **changes,
    }  # fmt: skip
    return Trajectory(**fields)


def committed(tmp_path, play):
    """Run `play(committer)` and return (commits, records)."""
    run, commits = make_run(tmp_path / "run"), []

    async def scenario():
        committer = Committer(TrajectoryWriter(run, "rollout-n-1-00000000", VOCABULARY), lambda: commits.append(1))
        working = asyncio.create_task(committer.run())
        await play(committer)
        working.cancel()
        await committer.flush()

    asyncio.run(scenario())
    return len(commits), [read_trajectory(run, entry) for entry in TrajectoryFollower(run).poll()]


def test_many_records_share_few_commits_and_none_is_lost_at_the_end(tmp_path):
    async def play(committer):
        for member in range(200):
            committer.add(trajectory(member))
            await asyncio.sleep(0.2 * EVERY_S if member % 20 == 0 else 0)

    commits, records = committed(tmp_path, play)
    assert [record.member for record in records] == list(range(200))
    assert 1 <= commits <= 20


def test_tokens_that_do_not_hold_together_become_a_defect_in_words(tmp_path):
    async def play(committer):
        committer.add(trajectory(0, token=VOCABULARY))
        committer.add(trajectory(1, reward=float("inf")))
        committer.add(trajectory(2, answer="\ud800"))
        committer.add(trajectory(3, reward_parts={"part": object()}))
        committer.add(trajectory(4))

    _, records = committed(tmp_path, play)
    assert [record.error_class for record in records] == [ErrorClass.INTERNAL] * 4 + [None]
    assert "outside the vocabulary of 16" in records[0].error and "reward is inf" in records[1].error
    assert records[0].sequences == () and records[0].stop_reason == StopReason.NONE
