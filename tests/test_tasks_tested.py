"""Tasks graded by tests: rows are checked whole, work is taken where a task lets it be done, verdicts are in words."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from prorl_cli import tasks
from prorl_cli.agent import Call
from prorl_cli.errors import InfraError, UserError
from prorl_cli.recipe import TaskSpec, load_recipe
from prorl_cli.tasks.grading import read_report, same_json, same_lines
from prorl_cli.tasks.jsonl import read_items
from prorl_cli.tasks.patch import Refused, from_answer, meddles, sort_out
from prorl_cli.tasks.question_answer import QuestionAnswer
from prorl_cli.trajectory import ErrorClass, StopReason
from tests.images import image
from tests.sandbox_kit import need_runtime
from tests.tested_world import (
    CALLS,
    IDS,
    RIGHT,
    START,
    SUITE,
    WRONG,
    boxes,
    handler,
    job_of,
    play,
    row,
    score,
    world,
    write,
)

__all__ = ["world"]

RECIPES = Path(__file__).parent.parent / "recipes"


def task_of(tmp_path, plain):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(plain) + "\n")
    (item,) = read_items(path)
    return item.payload["tested"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tests": {}}, "neither cases nor a suite"),
        ({"tests": {"suite": {"runner": "unittest", "ids": []}}}, "neither cases nor a suite"),
        ({"tests": {**CALLS, "suite": {"runner": "unittest", "ids": []}}}, "tests.suite has no ids"),
        ({"tests": {"cases": [{"stdout": "3"}]}}, "case 0 needs either command or call"),
        ({"tests": {"cases": [{"call": "solution"}]}}, "case 0 needs either command or call"),
        ({"tests": {**CALLS, "timeout": 0}}, "timeout must be positive"),
        ({"tests": {**CALLS, "tiemout": 1}}, "tiemout"),
        ({"editable": None}, "either editable or answer_file"),
        ({"answer_file": "solution.py"}, "either editable or answer_file"),
        ({"editable": None, "answer_file": "../solution.py"}, "is no path inside the folder"),
        ({"files": {"/etc/passwd": ""}}, "'/etc/passwd' is no path inside the folder"),
        ({"files": {"a/../../b": ""}}, "is no path inside the folder"),
        ({"folder": "../.."}, "folder must not leave"),
        ({"answer": "42"}, "unknown key 'answer'"),
        ({"question": " "}, "question must be text"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused_by_file_and_line(change, complaint, tmp_path):
    with pytest.raises(UserError) as caught:
        task_of(
            tmp_path, row(CALLS, **{"question": "Write add.", **change}) if "tests" not in change else row(**change)
        )
    assert "tasks.jsonl:1:" in str(caught.value) and complaint in str(caught.value)


def test_the_domains_of_code_are_graded_by_tests_and_answer_questions_without(tmp_path):
    assert [type(tasks.load_handler(TaskSpec(domain=name, source="x.jsonl"))) for name in ("code", "swe")] == [
        tasks.Tested
    ] * 2
    path = tmp_path / "mixed.jsonl"
    path.write_text('{"question": "6 * 7?", "answer": 42}\n' + json.dumps(row(CALLS)) + "\n")
    plain, tested = read_items(path)
    assert plain.payload.get("tested") is None and tested.payload["tested"].editable == ("solution.py",)


def test_only_what_a_task_lets_be_changed_is_taken(tmp_path):
    task = task_of(tmp_path, row(CALLS, editable=["src/*", "conftest.py"], files={"solution.py": "", "README": ""}))
    found = ["src/a.py", "src/deep/b.py", "src/conftest.py", "src/tests/c.py", "conftest.py", "README", "new.py"]
    chosen, dropped = sort_out(task, found)
    assert chosen == ["src/a.py", "src/deep/b.py", "conftest.py"], "what a task names itself counts, whatever it is"
    assert dropped == ["src/conftest.py", "src/tests/c.py", "new.py"]


@pytest.mark.parametrize(
    "path",
    ["conftest.py", "a/conftest.py", "sitecustomize.py", "usercustomize.py", "test_a.py", "a/b_test.py", "tests/a.py",
     "x.pth", "pytest.ini", "setup.cfg", "pyproject.toml", "a/__pycache__/b.cpython-311.pyc", "unittest/__init__.py",
     "pytest.py", ".git/hooks/pre-commit", "lib/x.so"],
)  # fmt: skip
def test_files_that_a_test_runner_would_take_for_its_own_are_known(path):
    assert meddles(path)


@pytest.mark.parametrize(
    "path", ["solution.py", "src/contest.py", "attest.py", "latest/a.py", "a.c", "docs/testing.md"]
)
def test_other_files_are_not_taken_for_them(path):
    assert not meddles(path)


def test_an_answer_is_its_last_fenced_block_or_all_of_it(tmp_path):
    task = task_of(tmp_path, row(CALLS, editable=None, answer_file="solution.py"))
    fenced = f"First\n```python\nwrong\n```\nno:\n```python\n{RIGHT}```\ndone"
    assert from_answer(task, fenced).files == {"solution.py": RIGHT.encode()}
    assert from_answer(task, RIGHT).files == {"solution.py": RIGHT.encode()}
    with pytest.raises(Refused, match="empty"):
        from_answer(task, "  ")


def test_a_report_counts_only_by_its_nonce_and_a_test_passes_only_once():
    lines = [
        '["n", "a", "passed"]',
        '["x", "b", "passed"]',
        "noise",
        "[]",
        '["n", "c", "passed"]',
        '["n", "c", "failed"]',
    ]
    assert read_report([*lines, '["n", 3, "passed"]', "null", "[" * 10_000], "n") == {"a": "passed", "c": "failed"}


@pytest.mark.parametrize(
    ("text", "wanted", "same"),
    [
        ("3", 3, True), ("3.0", 3, False), ("3", 3.0, True), ("0.30000000000000004", 0.3, True), ("true", 1, False),
        ("[1, [2]]", [1, [2]], True), ("[1]", [1, 2], False), ('{"a": 1}', {"a": 1}, True), ("{}", {"a": 1}, False),
        ("NaN", 0.0, False), ("1" + "0" * 400, 1.0, False), ("", None, False), ("null", None, True), ("[" * 100_000, [], False), ('"3"', 3, False),
    ],
)  # fmt: skip
def test_returned_values_are_compared_by_value_and_type(text, wanted, same):
    assert same_json(text, wanted) is same


def test_output_is_compared_but_for_white_space_at_the_ends_of_lines():
    assert same_lines("1 \n2\n\n", "1\n2") and not same_lines("1\n\n2", "1\n2") and not same_lines(" 1", "1")


def test_an_answer_alone_is_graded_without_a_box_of_its_own(world):
    task = row(CALLS, editable=None, answer_file="solution.py", files=None)
    ending = {"answer": f"Here:\n```python\n{RIGHT}```\n"}
    assert world.score(task, **ending).reward == 1.0
    cut = world.score(task, stop=StopReason.MAX_TOKENS, **ending)
    assert (cut.reward, cut.verdict) == (0.0, "there is no answer: the episode ended by max_tokens")


def test_programs_are_graded_by_what_they_print(world):
    cases = [{"command": ["python3", "solution.py"], "stdin": "1 2\n", "stdout": "3\n"}]
    task = row({"cases": cases})
    good = world.score(task, write("task/solution.py", "print(sum(map(int, input().split())))"))
    bad = world.score(task, write("task/solution.py", "print(3); raise SystemExit(1)"))
    assert (good.reward, bad.reward) == (1.0, 0.0) and "exit status 1" in bad.verdict


def test_new_files_and_deleted_ones_are_part_of_the_work(world):
    task = row(SUITE, editable=["*.py"], files={"solution.py": START_WITH_HELPER, "old.py": "raise SystemExit\n"})
    commands = [
        "mv task/old.py task/fresh.py",
        write("task/fresh.py", RIGHT),
        write("task/solution.py", "from fresh import add"),
    ]
    assert world.score(task, *commands).reward == 1.0


START_WITH_HELPER = "from old import add\n"


def test_programs_are_programs_for_the_tests_too(world):
    cases = [{"command": ["./given"], "stdout": "given"}, {"command": ["./made"], "stdout": "made"}]
    task = row({"cases": cases}, editable=["made"], files={"given": "#!/bin/sh\necho given\n"})
    made = write("task/made", "#!/bin/sh\necho made")
    assert world.score(task, "task/given", made, "chmod +x task/made").reward == 1.0
    assert world.score(task, made).parts["tests"] == 0.5


def test_an_answer_that_is_a_program_is_one_for_the_tests(world):
    task = row({"cases": [{"command": ["./solve"], "stdout": "7"}]}, editable=None, answer_file="solve", files=None)
    assert world.score(task, answer="```sh\n#!/bin/sh\necho 7\n```").reward == 1.0


def test_only_what_is_graded_by_tests_needs_its_box_after_the_episode(world, tmp_path, monkeypatch):
    async def played(_, job):
        await job.tools.call(Call(tool="python", arguments={"code": "1"}))

    async def lasts(task):
        job = job_of(tmp_path, world.factory, task)
        await handler().run(job)
        try:
            await job.tools.box.open()
        except InfraError as error:
            return "is gone" not in str(error)
        finally:
            await job.tools.close()
        return True

    monkeypatch.setattr(QuestionAnswer, "run", played)
    assert world.run(lasts(row(CALLS)))
    assert not world.run(lasts({"question": "1 + 1?", "answer": "2"}))


@pytest.mark.cluster
@pytest.mark.parametrize("runtime", ["bwrap", "apptainer"])
def test_what_the_policy_deletes_of_an_image_and_may_is_gone_for_the_tests(runtime, tmp_path):
    need_runtime("apptainer")  # which makes the image
    gone, kept = ("debian_version", "skel/.bashrc"), ("issue", "skel/.profile", "passwd")
    cases = [
        {"command": ["/bin/sh", "-c", f"test {test} {name}"]}
        for test, names in (("! -e", gone), ("-e", kept))
        for name in names
    ]
    task = row({"cases": cases}, folder="/etc", editable=["debian_version", "skel/.bash*"], files=None)

    async def scene():
        async with boxes(tmp_path, runtime, image=str(image())) as factory:
            gone = "rm /etc/debian_version /etc/issue; rm -r /etc/skel"
            return await play(tmp_path, factory, task, gone)

    graded = asyncio.run(scene())
    assert graded.reward == 1.0, graded.verdict


@pytest.mark.parametrize("stop", [StopReason.RUN_TIMEOUT, StopReason.BOX_KILLED, StopReason.LIMIT_MEMORY])
def test_an_episode_that_lost_its_box_or_its_time_earns_nothing_and_says_why(stop, world):
    result = world.score(row(CALLS), write("task/solution.py", RIGHT), stop=stop)
    assert (result.reward, result.verdict) == (0.0, f"the episode ended by {stop}")


@pytest.mark.parametrize("stop", [StopReason.MAX_TURNS, StopReason.MAX_TOKENS])
def test_work_counts_even_where_the_policy_did_not_come_to_an_end(stop, world):
    assert world.score(row(CALLS), write("task/solution.py", RIGHT), stop=stop).reward == 1.0


def test_a_box_without_the_interpreter_is_an_error_and_no_reward(world):
    with pytest.raises(InfraError, match="no program /opt/none/python3") as caught:
        world.score(row({**CALLS, "python": "/opt/none/python3"}), write("task/solution.py", RIGHT))
    assert caught.value.error_class == ErrorClass.VERIFIER


def test_tests_that_no_longer_fit_into_evals_clock_are_refused_before_the_policy_acts(world, tmp_path):
    job = job_of(tmp_path, world.factory, row({**CALLS, "timeout": 3600}))
    with pytest.raises(UserError, match=r"rollout\.eval\.timeout must be 20 s more"):
        world.run(handler().init(job))


class Fragile:
    """A factory whose boxes number `doomed` (from 1) are killed from outside in their second call."""

    def __init__(self, factory, doomed):
        self.factory, self.doomed, self.started = factory, doomed, 0

    async def start(self):
        self.started += 1
        box = await self.factory.start()
        return Doomed(box) if self.started in self.doomed else box


class Doomed:
    def __init__(self, box):
        self.box, self.calls = box, 0

    def __getattr__(self, name):
        return getattr(self.box, name)

    async def call(self, *arguments):
        self.calls += 1
        if self.calls > 1:
            await self.box.close()
        return await self.box.call(*arguments)


@pytest.mark.parametrize("doomed", [{1}, {2}, {1, 3}])
def test_the_death_of_either_box_during_grading_changes_no_verdict(doomed, world, tmp_path):
    fragile = Fragile(world.factory, doomed)
    result = world.run(play(tmp_path, fragile, row(CALLS), "cd task", write("task/solution.py", RIGHT)))
    assert result.reward == 1.0 and fragile.started == 2 + len(doomed)


class Slow(Fragile):
    """The box after a grader's that died takes longer to come than all tests may."""

    async def start(self):
        if self.started == 2:
            await asyncio.sleep(4)
        return await super().start()


def test_a_grader_whose_box_dies_pays_for_no_second_of_it(world, tmp_path):
    fragile = Slow(world.factory, {2})
    task = row({**CALLS, "timeout": 3})
    result = world.run(play(tmp_path, fragile, task, "cd task", write("task/solution.py", RIGHT)))
    assert (result.reward, fragile.started) == (1.0, 3), result.verdict


def test_a_missing_program_of_the_works_own_is_a_failed_test(world):
    task = row({"cases": [{"command": ["./run"], "stdout": "3\n"}]})
    result = world.score(task, write("task/solution.py", RIGHT))
    assert result.reward == 0.0 and "exit status 127" in result.verdict


def test_a_file_that_no_listing_names_is_not_taken_for_deleted(world):
    files = {"solution.py": START, "node_modules/kept.py": "kept = 1\n"}
    task = row(CALLS, editable=["*.py"], files=files)
    assert world.score(task, write("task/solution.py", f"import node_modules.kept\n{RIGHT}")).reward == 1.0


def test_pytest_reports_by_its_own_ids(tmp_path):
    """By the interpreter of these tests, which has it."""
    tests = {**SUITE, "suite": {"runner": "pytest", "ids": IDS}, "python": sys.executable, "timeout": 60}
    good = score(tmp_path, row(tests), write("task/solution.py", RIGHT), runtime="process")
    bad = score(tmp_path, row(tests), write("task/solution.py", WRONG), runtime="process")
    patched = f"{WRONG}\n{PATCH_PYTEST}"
    forged = score(tmp_path, row(tests), write("task/solution.py", patched), runtime="process")
    assert (good.reward, bad.reward, forged.reward) == (1.0, 0.0, 0.0), (good.verdict, forged.verdict)
    assert "the report is not to be believed" in forged.verdict


PATCH_PYTEST = """
import _pytest.reports, _pytest.runner
made = _pytest.reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(passed)
"""

SOLUTIONS = {
    "fizzbuzz": "def fizzbuzz(n):\n    return [('Fizz' * (k % 3 == 0) + 'Buzz' * (k % 5 == 0)) or str(k) for k in range(1, n + 1)]",
    "run-length": "from itertools import groupby\ndef encode(text):\n    return ''.join(c + str(len(list(g))) for c, g in groupby(text))",
    "balanced": "def balanced(text):\n    open_ = []\n    for c in text:\n        if c in '([{':\n            open_.append(c)\n"
    "        elif c in ')]}' and (not open_ or open_.pop() + c not in ('()', '[]', '{}')):\n            return False\n    return not open_",
    "roman": "def roman(n):\n    out = ''\n    for v, s in zip((1000,900,500,400,100,90,50,40,10,9,5,4,1),"
    "('M','CM','D','CD','C','XC','L','XL','X','IX','V','IV','I')):\n        out += s * (n // v)\n        n %= v\n    return out",
    "merge-intervals": "def merge(intervals):\n    out = []\n    for a, b in sorted(intervals):\n"
    "        if out and a <= out[-1][1]:\n            out[-1][1] = max(b, out[-1][1])\n        else:\n            out.append([a, b])\n    return out",
    "word-count": "import re, sys\nfrom collections import Counter\nfound = Counter(re.findall('[a-z]+', sys.stdin.read().lower()))\n"
    "for w, n in sorted(found.items(), key=lambda p: (-p[1], p[0])):\n    print(w, n)",
    "sum-of-columns": "import sys\nrows = [list(map(int, line.split(','))) for line in sys.stdin]\n"
    "if rows:\n    print(','.join(str(sum(c)) for c in zip(*rows)))",
    "stack": "class Stack:\n    def __init__(self):\n        self.values = []\n    def push(self, value):\n        self.values.append(value)\n"
    "    def pop(self):\n        return self.values.pop()\n    def __len__(self):\n        return len(self.values)",
    "median": "import statistics\ndef median(values):\n    if not values:\n        raise ValueError\n    return statistics.median(values)",
    "primes": "def primes(limit):\n    sieve = bytearray([1]) * (limit + 1)\n    for n in range(2, int(limit ** 0.5) + 1):\n"
    "        if sieve[n]:\n            sieve[n*n::n] = bytes(len(range(n*n, limit + 1, n)))\n    return [n for n in range(2, limit + 1) if sieve[n]]",
    "rotate": "def rotate(matrix):\n    return [list(row) for row in zip(*matrix[::-1])]",
    "change": "def change(amount, coins):\n    best = [0] + [None] * amount\n    for n in range(1, amount + 1):\n"
    "        best[n] = min((best[n - c] + 1 for c in coins if c <= n and best[n - c] is not None), default=None)\n"
    "    return -1 if best[amount] is None else best[amount]",
}  # fmt: skip


def test_every_problem_of_the_shipped_recipe_is_solved_by_its_solution_and_not_by_its_beginning(world):
    rows = [json.loads(line) for line in (RECIPES / "code.jsonl").read_text().splitlines()]
    assert [each["id"] for each in rows] == list(SOLUTIONS)

    for each in rows:
        begun, done = world.score(each), world.score(each, write("task/solution.py", SOLUTIONS[each["id"]]))
        assert (begun.reward, done.reward) == (0.0, 1.0), (each["id"], done.verdict)


def test_the_shipped_recipe_gives_its_boxes_and_clocks_what_its_tasks_need():
    recipe = load_recipe(RECIPES / "code.yaml")
    longest = max(item.payload["tested"].tests.timeout for item in read_items(Path(recipe.tasks[0].source)))
    assert recipe.rollout.eval.timeout >= longest + 20
    assert recipe.agent.tools == ("bash", "python", "edit")


def test_the_shipped_recipe_has_problems_to_train_on_and_others_to_hold_out():
    recipe = load_recipe(RECIPES / "code.yaml")
    source = tasks.open_source(recipe.tasks[0], recipe.seed)
    assert 1 <= source.held_out_size <= 6
    assert source.item(0, held_out=False).question != source.item(0, held_out=True).question
