"""Warm start: what the tiny model is shown is what an episode looks like, wrong as often as the recipe says."""

import json
from random import Random

import pytest

from prorl_cli.agent import TinyRenderer
from prorl_cli.agent.tiny import ENDCALL, ENDRESULT, RESULT, decode
from prorl_cli.errors import UserError
from prorl_cli.recipe import Recipe, TaskSpec
from prorl_cli.sandbox.boxed.tool_run import _result
from prorl_cli.sandbox.boxed.tools.calculator import run as calculator
from prorl_cli.tasks import Item, open_source
from prorl_cli.tasks.source import is_held_out
from prorl_cli.warmstart.transcripts import Noise, calculate, stream, transcript, with_wrong_digit, wrong_guess

RENDERER = TinyRenderer()
CLEAN = Noise(guess=0)
SOURCES = (
    ("reasoning_gym:chain_sum", {"min_terms": 2, "max_terms": 4, "max_digits": 2}),
    ("reasoning_gym:basic_arithmetic", {"min_terms": 2, "max_terms": 3, "max_digits": 2, "operators": ["+", "-", "*"]}),
    ("procedural:purchase", {"difficulty": [1, 3]}),
)


def items(source, options, count):
    opened = open_source(TaskSpec(domain="d", source=source, options=options), 5)
    return [opened.item(index, held_out=False) for index in range(count)]


def turns(made):
    """The authored turns of a transcript and the ids between them."""
    pieces, own = [], None
    for token, authored in zip(made.ids, made.authored, strict=True):
        if authored != own:
            pieces.append([])
            own = authored
        pieces[-1].append(token)
    return pieces[0], pieces[1::2], pieces[2::2]


def read(made):
    """(call's expression or None, its output, the answer) as the renderer reads them."""
    _, authored, _ = turns(made)
    final = RENDERER.parse(authored[-1])
    assert final.call is None and not final.malformed
    if len(authored) == 1:
        return None, "", final.text
    call = RENDERER.parse(authored[0])
    output = made.ids[made.ids.index(RESULT) + 1 : made.ids.index(ENDRESULT)]
    return call.call.arguments["expression"], decode(output), final.text


def question(expression, answer="8", text="What is 3 + 5?"):
    return Item(question=text, answer=answer, payload={"expression": expression})


@pytest.mark.parametrize(("source", "options"), SOURCES)
def test_a_clean_transcript_is_the_episode_that_answers_right(source, options):
    draw = Random(1)
    for item in items(source, options, 60):
        made = transcript(item, "Be brief.", CLEAN, draw)
        prompt, authored, between = turns(made)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": item.question}]
        assert prompt == RENDERER.start(messages, [])
        assert [piece[-1] in RENDERER.stop_ids for piece in authored] == [True, True]
        assert authored[0][-1] == ENDCALL
        expression, output, answer = read(made)
        assert expression == item.payload["expression"].strip()
        assert between == [RENDERER.extend(output)]
        assert output == calculator({"expression": expression})
        assert answer == output
        assert float(answer) == float(item.answer)


@pytest.mark.parametrize(("source", "options"), SOURCES)
def test_mistakes_are_as_frequent_as_the_recipe_says(source, options):
    noise, draw = Noise(guess=0.35, miscall=0.25, miscopy=0.1), Random(2)
    guessed = called = miscalled = copied = miscopied = 0
    for item in items(source, options, 150):
        for _ in range(10):
            expression, output, answer = read(transcript(item, "", noise, draw))
            if expression is None:
                guessed += 1
                assert answer != item.answer
                continue
            called += 1
            miscalled += expression != item.payload["expression"].strip()
            if not output.startswith("error"):
                copied += 1
                miscopied += answer != output
    assert guessed / 1500 == pytest.approx(0.35, abs=0.05)
    assert miscalled / called == pytest.approx(0.25, abs=0.05)
    assert miscopied / copied == pytest.approx(0.1, abs=0.04)


def test_what_is_shown_is_a_function_of_the_seed_and_never_held_out():
    def shown(seed, count):
        tasks = [{"domain": f"d{i}", "source": s, "options": o} for i, (s, o) in enumerate(SOURCES)]
        fields = {
            "name": "t",
            "model": "builtin:tiny",
            "agent": {"renderer": "tiny"},
            "tasks": tasks,
            "warmstart": {"seed": seed},
        }
        following = stream(Recipe.model_validate_json(json.dumps(fields)))
        return [following(CLEAN) for _ in range(count)]

    first = shown(0, 120)
    assert shown(0, 120) == first
    assert shown(1, 120) != first
    prompts = [decode(made.ids[: made.prompt]) for made in first]
    questions = [text.removeprefix("<bos><user>").removesuffix("<end><assistant>") for text in prompts]
    assert not any(is_held_out(text) for text in questions)
    assert 25 < sum("Total?" in text for text in questions) < 55  # one source of three


def test_weights_decide_which_task_is_shown():
    tasks = [
        {"domain": "a", "source": SOURCES[0][0], "options": SOURCES[0][1], "weight": 9},
        {"domain": "b", "source": SOURCES[2][0], "weight": 1},
    ]
    fields = {"name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny"}, "tasks": tasks}
    following = stream(Recipe.model_validate_json(json.dumps(fields)))
    bought = sum("Total?" in decode(following(CLEAN).ids) for _ in range(300))
    assert 12 < bought < 55


def test_an_item_without_expression_is_only_guessed():
    made = transcript(question(None), "", CLEAN, Random(0))
    expression, _, answer = read(made)
    assert expression is None
    assert int(answer) != 8


def test_a_call_that_the_calculator_refuses_is_followed_by_a_guess():
    made = transcript(question("3 + 5 / 0"), "", CLEAN, Random(0))
    expression, output, answer = read(made)
    assert (expression, output) == ("3 + 5 / 0", "error: division by zero")
    assert int(answer) != 8


@pytest.mark.parametrize("expression", ["1 + 2", "7 / 2", "1 / 3", "2 ** 9999", "", "1 +", "x", "10 / 0", "(4)"])
def test_outputs_are_what_a_box_prints(expression):
    printed = _result(calculator, {"expression": expression})
    assert calculate(expression) == (printed["output"], printed["outcome"] == "ok")


def test_a_wrong_digit_is_one_digit_and_never_leads_with_zero():
    draw = Random(3)
    for text in ("0", "7", "10", "-45", "3 * 20 + 4 * 9", "1.05"):
        for _ in range(200):
            wrong = with_wrong_digit(text, draw)
            changed = [(a, b) for a, b in zip(text, wrong, strict=True) if a != b]
            assert len(changed) == 1 and changed[0][0].isdigit() and changed[0][1].isdigit()
            calculator({"expression": wrong})
    assert with_wrong_digit("none", draw) == "none"


@pytest.mark.parametrize("answer", ["0", "-12", "7", "345", "2.5", "1/3"])
def test_a_guess_is_wrong(answer):
    draw = Random(4)
    assert all(wrong_guess(answer, draw) != answer for _ in range(300))


def test_questions_over_the_episodes_length_are_left_out_and_too_many_are_refused(tmp_path):
    def made_with(max_tokens, count):
        rows = tmp_path / "rows.jsonl"
        texts = [f"What is {'1 + ' * (number % 2) * 40}{number}?" for number in range(20)]
        rows.write_text("".join(json.dumps({"question": text, "answer": 1}) + "\n" for text in texts))
        fields = {
            "name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny", "max_tokens": max_tokens},
            "tasks": [{"domain": "math", "source": str(rows)}],
        }  # fmt: skip
        following = stream(Recipe.model_validate_json(json.dumps(fields)))
        return [following(CLEAN) for _ in range(count)]

    assert all(len(made.ids) <= 60 for made in made_with(60, 50))
    with pytest.raises(UserError, match=r"agent\.max_tokens \(10\)"):
        made_with(10, 1)
