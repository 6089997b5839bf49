"""The token invariants, over random multi-turn episodes of a policy that writes anything at all."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_cli.agent import Limits, ToolBox, load_renderer
from prorl_cli.agent.tiny import CALL, END, ENDCALL, VOCAB_SIZE, encode
from prorl_cli.trajectory import check_sequence
from tests import qwen_like
from tests.agent_parts import Boxes, Result, ScriptedPolicy, whole_episode, written

TINY = load_renderer("tiny", None)


@pytest.fixture(scope="module")
def renderers(tmp_path_factory):
    folders = {kind: qwen_like.build(tmp_path_factory.mktemp(kind), kind) for kind in ("instruct", "thinking")}
    return {"tiny": TINY} | {kind: load_renderer("hermes", folder) for kind, folder in folders.items()}


def good_turns(renderer, name):
    """A call and an answer in the renderer's own language."""
    if name == "tiny":
        return [CALL, *encode("1 + 2"), ENDCALL], [*encode("3"), END]
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 2"}}\n</tool_call>'
    return tuple(
        renderer._tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in (call, "It is 3.")
    )


texts = st.text(max_size=20) | st.sampled_from(
    ["<end>", "<|im_end|>", "</tool_response><|im_end|>", "<call>1<endcall>", "\ud800", "é\n", ""]
)


@st.composite
def episodes(draw, renderers):
    name = draw(st.sampled_from(sorted(renderers)))
    renderer = renderers[name]
    vocabulary = VOCAB_SIZE if name == "tiny" else renderer.vocab_size
    call, answer = good_turns(renderer, name)
    garbage = st.lists(st.integers(0, vocabulary - 1), max_size=12)
    # A turn ends with its first stop token or because its tokens ran out, as an engine's does.
    body = garbage.map(lambda ids: [t for t in ids if t not in renderer.stop_ids])
    junk = st.tuples(body, st.sampled_from(renderer.stop_ids)).map(lambda pair: [*pair[0], pair[1]])
    open_ended = body.filter(bool)
    turn = st.one_of(st.just(call), st.just(call), st.just(answer), junk, open_ended, junk.map(lambda t: call[:-1] + t))
    cuts = st.lists(st.integers(0, 12), max_size=3)
    version = draw(st.integers(0, 5))
    turns = [written(draw(turn), version + k, draw(cuts)) for k in range(6)]
    outputs = [Result(draw(texts), draw(st.sampled_from(["ok", "error", "timeout"]))) for _ in range(6)]
    messages = [{"role": "user", "content": draw(texts)}]
    if draw(st.booleans()):
        messages.insert(0, {"role": "system", "content": draw(st.text(st.characters(codec="utf-8"), max_size=10))})
    limits = Limits(max_turns=draw(st.integers(1, 6)), max_tokens=draw(st.sampled_from([1000, 300, 60, 20, 5])))
    return name, renderer, vocabulary, turns, outputs, messages, limits


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_token_invariants_hold_whatever_the_policy_writes(renderers, data):
    _, renderer, vocabulary, turns, outputs, messages, limits = data.draw(episodes(renderers))
    policy, boxes = ScriptedPolicy(turns), Boxes(outputs)
    tools = ToolBox(boxes, ["calculator"], 5.0)
    episode = asyncio.run(whole_episode(policy, renderer, messages, tools, limits, 1))

    prompts, said = policy.prompts, policy.said
    for before, piece, after in zip(prompts, said, prompts[1:], strict=False):
        exact = before + piece.token_ids
        assert after[: len(exact)] == exact
        assert after[len(exact) :] != []
    assert len(said) <= limits.max_turns
    assert boxes.closed == boxes.started <= 1
    if not said:
        assert episode.sequences == ()
        return

    (sequence,) = episode.sequences
    assert sequence.ids == prompts[-1] + said[-1].token_ids
    assert len(sequence) <= limits.max_tokens
    assert check_sequence(sequence, vocabulary) == []
    assert_exactly_the_authored_is_marked(sequence, prompts, said)


def assert_exactly_the_authored_is_marked(sequence, prompts, said):
    mask, logprobs, spans = [0] * len(sequence), [0.0] * len(sequence), []
    for prompt, piece in zip(prompts, said, strict=True):
        at, end = len(prompt), len(prompt) + len(piece.token_ids)
        mask[at:end] = [1] * len(piece.token_ids)
        logprobs[at:end] = piece.logprobs
        spans += [(span.version, at + span.start, at + span.end) for span in piece.spans]
    assert sequence.mask == mask
    assert sequence.logprob_values == pytest.approx(logprobs)
    assert [(span.version, span.start, span.end) for span in sequence.spans] == spans
