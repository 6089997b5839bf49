"""The loop: when an episode ends, what is recorded of it, and that its box can be closed wherever it stands."""

import asyncio
import contextlib

import pytest

from prorl_cli.agent import Limits, ToolBox, load_renderer
from prorl_cli.agent.tiny import CALL, END, ENDCALL, decode, encode
from prorl_cli.errors import InfraError, UserError
from prorl_cli.trajectory import ErrorClass, StopReason, VersionSpan
from tests.agent_parts import Boxes, Result, ScriptedPolicy, Written, whole_episode

TINY = load_renderer("tiny", None)
QUESTION = [{"role": "user", "content": "1+2"}]
ANSWER = [*encode("3"), END]


def calling(expression):
    return [CALL, *encode(expression), ENDCALL]


def run(turns, results=(Result("3"),), *, max_turns=4, max_tokens=200, seconds=None, seed=7):
    policy, boxes = ScriptedPolicy(list(turns)), Boxes(list(results))
    limits = Limits(max_turns=max_turns, max_tokens=max_tokens, seconds=seconds)
    tools = ToolBox(boxes, ["calculator"], 5.0)
    return policy, boxes, asyncio.run(whole_episode(policy, TINY, QUESTION, tools, limits, seed))


def text_of(episode):
    return decode(episode.sequences[0].ids)


def test_a_call_its_result_and_an_answer_make_one_sequence():
    _, boxes, episode = run([calling("1+2"), ANSWER])
    assert text_of(episode) == "<bos><user>1+2<end><assistant><call>1+2<endcall><result>3<endresult>3<end>"
    assert (episode.stop_reason, episode.answer) == (StopReason.ANSWERED, "3")
    shown = [(c.turn, c.tool, c.arguments, c.output, c.outcome) for c in episode.tool_calls]
    assert shown == [(0, "calculator", '{"expression": "1+2"}', "3", "ok")]
    authored = "".join(
        decode([t]) for t, m in zip(episode.sequences[0].ids, episode.sequences[0].mask, strict=True) if m
    )
    assert authored == "<call>1+2<endcall>3<end>"
    assert (boxes.started, boxes.closed) == (1, 1)


def test_no_box_is_started_for_an_episode_without_a_call():
    _, boxes, episode = run([ANSWER])
    assert (boxes.started, episode.stop_reason) == (0, StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("turns", "limits", "stop"),
    [
        ([calling("1")] * 3, {"max_turns": 3}, StopReason.MAX_TURNS),
        ([encode("12345678")], {"max_tokens": 12}, StopReason.MAX_TOKENS),
        ([calling("1+2"), ANSWER], {"max_tokens": 14}, StopReason.MAX_TOKENS),
        ([ANSWER], {"max_tokens": 6}, StopReason.MAX_TOKENS),
    ],
)
def test_limits_end_the_episode_within_the_budget_and_without_an_answer(turns, limits, stop):
    _, boxes, episode = run(turns, **limits)
    assert (episode.stop_reason, episode.answer) == (stop, "")
    assert sum(len(s) for s in episode.sequences) <= limits.get("max_tokens", 200)
    assert boxes.started == boxes.closed


def test_a_prompt_that_leaves_no_room_is_never_sent_and_leaves_no_sequence():
    policy, _, episode = run([ANSWER], max_tokens=6)
    assert (policy.prompts, episode.sequences) == ([], ())


def test_every_call_within_the_turns_is_run_and_its_unread_output_is_not_kept():
    _, boxes, episode = run([calling("1"), calling("2")], max_turns=2)
    assert len(boxes.calls) == len(episode.tool_calls) == 2
    assert text_of(episode).endswith("<call>2<endcall>")


@pytest.mark.parametrize(
    ("outcome", "stop"),
    [
        ("dead", StopReason.BOX_KILLED),
        ("limit:memory", StopReason.LIMIT_MEMORY),
        ("limit:cpu", StopReason.LIMIT_CPU),
        ("limit:processes", StopReason.LIMIT_PROCESSES),
    ],
)
def test_what_the_policy_did_to_its_box_ends_the_episode_as_its_own_doing(outcome, stop):
    _, boxes, episode = run([calling("1"), ANSWER], [Result("", outcome)])
    assert (episode.stop_reason, episode.tool_calls[0].outcome, boxes.closed) == (stop, outcome, 1)


@pytest.mark.parametrize("outcome", ["error", "timeout"])
def test_a_failed_call_is_told_and_the_episode_goes_on(outcome):
    _, _, episode = run([calling("1/0"), ANSWER], [Result("error: division by zero", outcome)])
    assert "<result>error: division by zero<endresult>" in text_of(episode)
    assert episode.stop_reason == StopReason.ANSWERED


def test_a_malformed_call_is_answered_without_a_box():
    _, boxes, episode = run([[CALL, *encode("1"), END], ANSWER])
    assert "<call>1<end><result>error: unbalanced call<endresult>3<end>" in text_of(episode)
    assert boxes.started == 0
    assert [(c.tool, c.arguments, c.outcome) for c in episode.tool_calls] == [("", "<call>1", "error")]


def test_unknown_tools_and_arguments_are_answered_without_a_box():
    boxes = Boxes([Result("never")])
    none, calculator = ToolBox(boxes, [], 1.0), ToolBox(boxes, ["calculator"], 1.0)
    call = TINY.parse(calling("1")).call
    bad = [{}, {"expression": 3}, {"expression": "1", "verbose": "yes"}]
    outputs = [asyncio.run(none.call(call)).output] + [
        asyncio.run(calculator.call(type(call)(tool="calculator", arguments=a))).output for a in bad
    ]
    assert outputs == [
        "error: there is no tool 'calculator'; tools: none",
        "error: calculator needs expression",
        "error: calculator: expression must be of type string",
        "error: calculator takes expression, not 'verbose'",
    ]
    assert boxes.started == 0
    with pytest.raises(UserError, match="no tool 'browser'"):
        ToolBox(boxes, ["browser"], 1.0)


@pytest.mark.parametrize("failure", [OSError("gone"), InfraError(ErrorClass.SANDBOX, "killed from outside")])
def test_a_box_that_fails_by_itself_is_an_error_of_the_sandbox(failure):
    with pytest.raises(InfraError) as caught:
        run([calling("1")], [failure])
    assert caught.value.error_class == ErrorClass.SANDBOX


@pytest.mark.parametrize(
    "piece",
    [
        Written([], [], ()),
        Written([END], [float("nan")], (VersionSpan(version=0, start=0, end=1),)),
        Written([END], [-1.0], ()),
        Written([END], [-1.0, -1.0], (VersionSpan(version=0, start=0, end=1),)),
        Written([END], [-1.0], (VersionSpan(version=0, start=0, end=2),)),
    ],
)
def test_an_unusable_generation_is_an_error_of_the_engine(piece):
    with pytest.raises(InfraError) as caught:
        run([piece])
    assert caught.value.error_class == ErrorClass.ENGINE


def test_the_run_clock_ends_the_episode_with_what_it_has():
    async def forever():
        await asyncio.sleep(60)

    for turns, results in (([calling("1"), forever], [Result("3")]), ([calling("1")], [forever])):
        _, boxes, episode = run(turns, results, seconds=0.05)
        assert episode.stop_reason == StopReason.RUN_TIMEOUT
        assert text_of(episode).endswith("<call>1<endcall>")
        assert boxes.closed == 1


def test_a_timeout_of_the_policys_own_is_not_taken_for_the_run_clock():
    with pytest.raises(TimeoutError):
        run([TimeoutError("socket")], seconds=60)


@pytest.mark.parametrize("where", ["generating", "calling", "closing"])
def test_cancelling_an_episode_ends_its_generation_and_its_box(where):
    ended = []

    async def episode():
        reached = asyncio.Event()

        async def stuck():
            reached.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(where)

        policy = ScriptedPolicy([calling("1"), stuck if where == "generating" else ANSWER])
        boxes = Boxes([stuck if where == "calling" else Result("3")])
        if where == "closing":
            closing = boxes.close

            async def slow_close():
                reached.set()
                await asyncio.sleep(0.02)
                await closing()
                ended.append(where)

            boxes.close = slow_close
        tools = ToolBox(boxes, ["calculator"], 5.0)
        running = asyncio.create_task(
            whole_episode(policy, TINY, QUESTION, tools, Limits(max_turns=4, max_tokens=200), 1)
        )
        await reached.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        assert running.cancelled()
        await asyncio.sleep(0.05)
        return boxes

    boxes = asyncio.run(episode())
    assert ended == [where]
    assert boxes.closed == boxes.started == 1


def test_the_seed_decides_every_turns_sampling():
    first, second, other = (run([calling("1"), ANSWER], seed=seed)[0].seeds for seed in (7, 7, 8))
    assert first == second != other
    assert len(set(first)) == 2
