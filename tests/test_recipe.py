"""A recipe loads whole or is refused with every mistake at once, each with its line and the nearest valid key."""

import json
from pathlib import Path

import pytest

from prorl_cli.errors import RecipeError
from prorl_cli.recipe import Recipe, load_recipe, starter_text, with_overrides
from prorl_cli.recipe.text import parse_yaml
from prorl_cli.recipe.units import format_duration, format_size, parse_duration, parse_size

MINIMAL = """\
name: demo
model: builtin:tiny
agent: {renderer: tiny}
tasks:
  - {domain: math, source: "reasoning_gym:chain_sum"}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def mistakes(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


def test_the_starter_recipe_loads_and_states_every_key(write):
    recipe = load_recipe(write(starter_text()))
    assert recipe.name == "my-run"
    for section in Recipe.model_fields:
        assert section in starter_text()


def test_every_commented_default_of_the_starter_can_be_uncommented(write):
    plain = load_recipe(write(starter_text()))
    lines = [
        line.removeprefix("# ") if ":" in line and line.startswith("# ") else line
        for line in starter_text().splitlines()
    ]
    keys = [line for line in lines if not line[:1].isupper()]
    assert load_recipe(write("\n".join(keys))) == plain


def test_every_mistake_is_reported_at_once_with_file_line_and_nearest_key(write):
    path = write(
        "name: a b\nmodle: x\ntasks:\n  - {domain: math, source: a, wieght: 2}\n"
        "agent:\n  max_turns: off\n  max_turns: 3\nrollout:\n  run: {timeout: 24:00:00, slots: '3'}\nlearner: {lr: -1}\n"
    )
    report = mistakes(path)
    for expected in (
        "9 mistakes",
        f"{path}:1: name: ",
        f"{path}:2: modle: unknown key, did you mean 'model'?",
        "model: is required",
        f"{path}:4: tasks.0.wieght: unknown key, did you mean 'weight'?",
        f"{path}:6: agent.max_turns: input should be a valid integer, got 'off'",
        f"{path}:7: agent.max_turns: written twice (first on line 6)",
        f"{path}:9: rollout.run.timeout: expected a number with a unit",
        f"{path}:9: rollout.run.slots: ",
        f"{path}:10: learner.lr: ",
    ):
        assert expected in report


def test_sampling_that_biases_the_ratio_is_refused_with_its_reason(write):
    assert "biases the ratio" in mistakes(write(MINIMAL), "agent.top_p=0.9")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\nb: 3", "not valid YAML"),
        ("- 1\n- 2", "a recipe is a mapping"),
        ("", "a recipe is a mapping"),
        ("just words", "a recipe is a mapping"),
        ("a: *nowhere", "aliases are not supported"),
        ("a: &x [1]\nb: *x", "aliases are not supported"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]", "aliases are not supported"),
        ("a: " + "[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_yaml_is_one_clear_report(write, text, expected):
    assert expected in mistakes(write(text))


def test_a_missing_or_unreadable_recipe_is_one_clear_report(tmp_path):
    assert "no such recipe" in mistakes(tmp_path / "none.yaml")
    assert "cannot read" in mistakes(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "cannot read" in mistakes(tmp_path / "binary")


def test_scalars_are_yaml_1_2():
    data, lines, problems = parse_yaml("a: off\nb: 24:00:00\nc: 010\nd: 1e-4\ne: yes\nf: ~\ng: 0x10\nh: true\ni:\n")
    assert data == {
        "a": "off",
        "b": "24:00:00",
        "c": 10,
        "d": 1e-4,
        "e": "yes",
        "f": None,
        "g": 16,
        "h": True,
        "i": None,
    }
    assert lines[("d",)] == 4 and not problems


def test_overrides_set_nested_keys_lists_and_units(write):
    recipe = load_recipe(write(MINIMAL), ("learner.lr=1e-4", "rollout.run.timeout=30s", "tasks.0.weight=2"))
    assert (recipe.learner.lr, recipe.rollout.run.timeout, recipe.tasks[0].weight) == (1e-4, 30.0, 2.0)


@pytest.mark.parametrize(
    "override", ["nonsense", "=3", "tasks.7.weight=1", "name.a=1", "learner.lr=[", "learner.stepz=3"]
)
def test_a_bad_override_is_reported(write, override):
    assert override.split("=")[0].split(".")[-1] in mistakes(write(MINIMAL), override)


def test_a_resolved_recipe_round_trips_through_json(write):
    recipe = load_recipe(write(MINIMAL), ("rollout.deadline=90s", "sandbox.memory=1GiB"))
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert json.loads(recipe.model_dump_json())["rollout"]["deadline"] == "90s"
    assert with_overrides(recipe, ("learner.steps=7",)).learner.steps == 7


def test_relative_paths_are_relative_to_the_recipe(write):
    text = MINIMAL.replace('"reasoning_gym:chain_sum"', "data/tasks.jsonl").replace("builtin:tiny", "../model")
    path = write(text.replace("renderer: tiny", "renderer: hermes"))
    path.write_text(path.read_text() + "sandbox: {runtime: apptainer, image: images/math.sif}\n")
    recipe = load_recipe(path)
    assert Path(recipe.tasks[0].source) == path.parent / "data/tasks.jsonl"
    assert Path(recipe.model) == path.parent / "../model"
    assert Path(recipe.sandbox.image) == path.parent / "images/math.sif"


def test_the_tiny_model_speaks_only_tiny(write):
    assert "speaks only" in mistakes(write(MINIMAL), "agent.renderer=hermes")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("sandbox.runtime=apptainer", "needs `image`"),
        ("sandbox.image=/a.sif", "`image` is for `runtime: apptainer` or `bwrap`"),
    ],
)
def test_an_image_and_its_runtime_go_together(key, words, write):
    assert words in mistakes(write(MINIMAL), key)


def test_an_episode_must_fit_the_engine(write):
    assert "must fit the engine" in mistakes(write(MINIMAL), "agent.max_tokens=4096")


@pytest.mark.parametrize("seconds", [0.5, 1, 59, 60, 90, 3600, 86400, 12.25])
def test_durations_are_spelled_so_that_they_parse_back(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("size", [1, 1023, 1024, 2**20 * 3, 2**30 * 240, 2**40])
def test_sizes_are_spelled_so_that_they_parse_back(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["10", 10, "10 minutes", "-5m", "m", None, True])
def test_a_duration_without_a_known_unit_is_refused(text):
    with pytest.raises(ValueError, match="such as '10m'"):
        parse_duration(text)
