"""Generated tasks: train and held-out cannot overlap, items are pure, options are checked, answers are right."""

import json
import os
import subprocess
import sys
from fractions import Fraction

import pytest
import reasoning_gym

from prorl_cli.errors import UserError
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks import open_source
from prorl_cli.tasks.arithmetic import leads_to
from prorl_cli.tasks.reasoning import HASH_ORDERED
from prorl_cli.tasks.source import HELD_OUT_ONE_IN, is_held_out, normalized

QUICK = {"min_terms": 2, "max_terms": 4, "max_digits": 2}
SOURCES = {
    "reasoning_gym:chain_sum": QUICK,
    "reasoning_gym:basic_arithmetic": QUICK,
    "procedural:purchase": {"difficulty": [1, 3]},
}
SMALL = {
    "reasoning_gym:chain_sum": {"min_terms": 2, "max_terms": 2, "max_digits": 1},
    "procedural:purchase": {"difficulty": 1},
}


def source(name, seed_=1, **options):
    return open_source(TaskSpec(domain="math", source=name, options=options), seed_)


@pytest.mark.parametrize("name", SOURCES)
def test_no_question_of_20000_train_items_is_among_1000_held_out_ones(name):
    """Held out by neighbouring seeds too: with seed s + 1 a reasoning-gym set is that of seed s, one further."""
    train = source(name, 1, **SOURCES[name])
    practised = {normalized(train.item(index, False).question) for index in range(20_000)}
    assert len(practised) > 5000
    for seed in (1, 2, 20_001):
        held_out = source(name, seed, **SOURCES[name])
        asked = {normalized(held_out.item(index, True).question) for index in range(1000)}
        assert not asked & practised
        assert len(asked) > 500


def test_the_trap_of_nearby_seeds_is_real():
    first, second = (
        {entry["question"] for entry in reasoning_gym.create_dataset("chain_sum", seed=seed, size=500, **QUICK)}
        for seed in (1, 2)
    )
    assert len(first & second) > 450


@pytest.mark.parametrize("name", SMALL)
def test_even_a_family_of_few_questions_is_kept_apart(name):
    tasks = source(name, **SMALL[name])
    held_out = {tasks.item(index, True).question for index in range(300)}
    train = {tasks.item(index, False).question for index in range(1500)}
    assert held_out
    assert not held_out & train


def test_a_family_with_a_single_question_is_refused_in_words():
    with pytest.raises(UserError, match="too few different questions to keep train and held-out apart"):
        for held_out in (True, False):
            source("reasoning_gym:count_primes", min_n=7, max_n=7).item(0, held_out)


def test_one_question_in_five_is_held_out_however_it_is_spaced():
    share = sum(is_held_out(f"What is {number}?") for number in range(10_000)) / 10_000
    assert abs(share - 1 / HELD_OUT_ONE_IN) < 0.015
    assert all(is_held_out(f"a {n}\n b") == is_held_out(f" a  {n} b ") for n in range(50))


@pytest.mark.parametrize("name", SOURCES)
def test_items_are_a_pure_function_of_seed_side_and_index(name):
    forward, backward = source(name, 3, **SOURCES[name]), source(name, 3, **SOURCES[name])
    wanted = [(side, index) for side in (True, False) for index in range(20)]
    items = {key: forward.item(key[1], key[0]) for key in wanted}
    assert items == {key: backward.item(key[1], key[0]) for key in reversed(wanted)}
    assert source(name, 4, **SOURCES[name]).item(0, False) != items[False, 0]


@pytest.mark.parametrize("name", SOURCES)
def test_an_expression_leads_to_the_answer_where_the_source_knows_one(name):
    items = [source(name, 1, **SOURCES[name]).item(index, False) for index in range(200)]
    known = [item for item in items if item.payload["expression"] is not None]
    assert len(known) > 150
    for item in known:
        assert Fraction(eval(item.payload["expression"].replace("/", "//"))) == Fraction(item.answer)


def test_an_expression_that_does_not_lead_to_the_answer_is_not_given():
    """reasoning-gym reckons `9 - 4 * 7` from left to right when parentheses are off."""
    tasks = source("reasoning_gym:basic_arithmetic", **QUICK, allow_parentheses=False)
    given = {tasks.item(index, False).payload["expression"] is None for index in range(100)}
    assert given == {True, False}
    assert not leads_to("9 - 4 * 7", "35")
    assert leads_to("( 9 - 4 ) * -7", "-35")
    assert not leads_to("__import__('os')", "1")
    assert not leads_to(None, "1")


# ── reasoning-gym, all of it ──────────────────────────────────────────────────────────────────────────────────────

SLOW = {"arc_agi", "futoshiki", "intermediate_integration", "knight_swap", "quantum_lock", "zebra_puzzles"}
SLOW |= {"puzzle24", "rubiks_cube", "sokoban", "composite"}
"""A tenth of a second an item or more; `composite` needs options."""

EVERYTHING = """
import contextlib, json, sys
from reasoning_gym.factory import DATASETS
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks import open_source
order = sorted(set(DATASETS) - set(json.loads(sys.argv[1])))
order = order if sys.argv[2] == "forward" else order[::-1]
with contextlib.redirect_stdout(sys.stderr):
    found = {n: open_source(TaskSpec(domain="d", source="reasoning_gym:" + n), 5) for n in order}
    found = {n: [s.item(i, i % 2 == 0).question for i in (0, 1)] for n, s in found.items()}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_data_set_gives_the_same_questions_in_every_process(tmp_path):
    """Those that follow Python's string hashes and those that draw from the shared random generator included; one
    writes files where it stands."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", EVERYTHING, json.dumps(sorted(SLOW)), order],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**environment, "PYTHONHASHSEED": seed}, cwd=tmp_path,
        )
        for order, seed in (("forward", "1"), ("backward", "2"))
    ]  # fmt: skip
    first, second = (json.loads(process.communicate()[0].splitlines()[-1]) for process in processes)
    assert len(first) > 90
    assert first.keys() >= HASH_ORDERED
    assert {name for name in first if first[name] != second[name]} == set()
    assert all(len(set(questions)) == 2 for questions in first.values())


def test_seeds_that_a_generator_gives_up_on_are_passed_over_and_hopeless_options_are_said_in_words():
    """`maze` raises where it finds no free cell: now and then in a small grid, always in one with a single cell."""
    small = reasoning_gym.create_dataset("maze", seed=0, size=300, max_grid_size=4, min_grid_size=4, min_dist=1)
    assert sum(gives_up(small, position) for position in range(300)) > 5
    mazes = source("reasoning_gym:maze", max_grid_size=4, min_grid_size=4, min_dist=1)
    assert len({mazes.item(index, False).question for index in range(100)}) == 100
    with pytest.raises(UserError, match="maze fails with"):
        source("reasoning_gym:maze", min_grid_size=3, max_grid_size=3).item(0, False)


def gives_up(dataset, position):
    try:
        dataset[position]
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("reasoning_gym:chain_sums", {}, "no data set 'chain_sums': did you mean chain_sum"),
        ("reasoning_gym:chain_sum", {"seed": 3}, "may not set seed"),
        ("reasoning_gym:chain_sum", {"terms": 3}, "refuses the options"),
        ("reasoning_gym:chain_sum", {"min_terms": 5, "max_terms": 2}, "refuses the options"),
        ("reasoning_gym:chain_sum", {"min_terms": "two"}, "refuses the options"),
        ("procedural:shopping", {}, "there is procedural:purchase"),
        ("procedural:purchase", {"items": 2}, "has no option items"),
        ("procedural:purchase", {"difficulty": 0}, "1 to 12"),
        ("procedural:purchase", {"difficulty": [3, 2]}, "1 to 12"),
        ("procedural:purchase", {"difficulty": True}, "1 to 12"),
        ("hub:gsm8k", {}, "reasoning_gym:NAME, procedural:NAME or the path"),
        ("nowhere.jsonl", {}, "cannot read the tasks in nowhere.jsonl"),
    ],
)
def test_mistakes_in_a_source_are_said_in_words(name, options, complaint):
    with pytest.raises(UserError, match=complaint):
        source(name, **options)


def test_difficulty_is_the_number_of_line_items():
    for difficulty in (1, 3, 12):
        item = source("procedural:purchase", difficulty=difficulty).item(0, False)
        assert item.question.count(" at ") == difficulty
    counts = {source("procedural:purchase", difficulty=[1, 3]).item(i, False).question.count(" at ") for i in range(50)}
    assert counts == {1, 2, 3}
