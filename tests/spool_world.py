"""Trajectories and run directories for the spool's tests."""

from prorl_cli.rundir import RunDir
from prorl_cli.trajectory import (
    ErrorClass,
    Purpose,
    Sequence,
    StopReason,
    TaskRef,
    Timings,
    ToolCall,
    Trajectory,
    VersionSpan,
)

VOCAB = 64


def new_run(root):
    run = RunDir(root)
    run.create()
    return run


def sequence(length=8, authored=4, version=3):
    start = length - authored
    return Sequence.pack(
        [n % VOCAB for n in range(length)],
        [0] * start + [1] * authored,
        [0.0] * start + [-0.5] * authored,
        [VersionSpan(version=version, start=start, end=length)],
    )


def trajectory(group=0, member=0, **changes):
    fields = {
        "group": group,
        "member": member,
        "tried": 0,
        "purpose": Purpose.TRAIN,
        "task": TaskRef(task=2, domain="sums", index=17),
        "sequences": (sequence(), sequence(12, 3, version=5)),
        "sampling": {"temperature": 1.0},
        "tool_calls": (ToolCall(turn=0, tool="calculator", arguments="{}", output="4", outcome="ok", seconds=0.1),),
        "reward": 1 / 3,
        "reward_parts": {"right": 1 / 3},
        "stop_reason": StopReason.MAX_TURNS,
        "timings": Timings(run=2.5),
        **changes,
    }
    return Trajectory(**fields)


def failed(group=0, member=0):
    return trajectory(
        group,
        member,
        sequences=(),
        reward=0.0,
        stop_reason=StopReason.NONE,
        error_class=ErrorClass.VERIFIER,
        error="the verifier hung",
    )
