"""Scoring in child processes: rewards by every verifier, and what hangs, raises, dies or lies is an error, not a reward."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from prorl_cli.errors import InfraError
from prorl_cli.recipe import TaskSpec
from prorl_cli.tasks import Item, Verifiers, open_source
from prorl_cli.tasks.answers import as_number, extract_answer
from prorl_cli.trajectory import ErrorClass

HERE = "tests.verifier_examples"


def verified(scenario, **options):
    """Run `scenario(verifiers)` with live verifier processes; none is left afterwards."""

    async def inner():
        before = set(psutil.Process().children(recursive=True))
        async with Verifiers(**options) as verifiers:
            result = await scenario(verifiers)
        for _ in range(500):  # who was killed with its parent waits for init to take note
            if not (left := set(psutil.Process().children(recursive=True)) - before):
                break
            await asyncio.sleep(0.01)
        assert not left
        return result

    return asyncio.run(inner())


async def failure(call):
    with pytest.raises(InfraError) as caught:
        await call
    assert caught.value.error_class == ErrorClass.VERIFIER
    return str(caught.value)


def gone(pid, within_s=5.0):
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def plain(verifier, answer):
    return Item(question="q", answer=answer, payload={"verifier": verifier})


def test_every_verifier_tells_right_from_wrong():
    cases = [
        (plain("exact", "a  b"), "a b\n", 1.0),
        (plain("exact", "a b"), "a B", 0.0),
        (plain("number", "1200"), " $1,200.0 ", 1.0),
        (plain("number", "12"), "12 apples", 0.0),
        (plain("number", "12"), "", 0.0),
        (plain("math", "\\sqrt{2}"), "2^{1/2}", 1.0),
        (plain("math", "1/2"), "\\frac{2}{4}", 1.0),
        (plain("math", "(x+1)^2"), "x^2+2x+1", 1.0),
        (plain("math", "1/2"), "0.51", 0.0),
        (plain("math", "7"), "no idea }{", 0.0),
    ]

    async def scenario(verifiers):
        return [await verifiers.score(item, answer) for item, answer, _ in cases]

    assert verified(scenario) == [reward for _, _, reward in cases]


def test_reasoning_gyms_own_verifier_scores_its_tasks_entries_with_tuples_and_sets_included():
    names = [
        "chain_sum",
        "basic_arithmetic",
        "gcd",
        "word_sorting",
        "knights_knaves",
        "number_format",
        "simple_geometry",
    ]

    async def scenario(verifiers):
        for name in names:
            item = open_source(TaskSpec(domain="d", source=f"reasoning_gym:{name}"), 1).item(0, False)
            assert await verifiers.score(item, item.answer) == 1.0, name
            assert await verifiers.score(item, "certainly wrong") < 0.5, name
        graph = open_source(TaskSpec(domain="d", source="reasoning_gym:graph_color"), 1).item(0, False)
        assert await verifiers.score(graph, "{}") < 0.5

    verified(scenario)


def test_a_verifier_of_ones_own_may_print_and_read_without_harm():
    async def scenario(verifiers):
        return [await verifiers.call(f"{HERE}:length", given=text) for text in ("abc", "", "é" * 200_000)]

    assert verified(scenario) == [3, 0, 200_000]


FAILURES = [
    ("raising", {"kind": "value"}, "ValueError: bad luck"),
    ("raising", {"kind": "exit"}, "SystemExit: 3"),
    ("returned", {"value": float("nan")}, "not a finite number"),
    ("returned", {"value": float("inf")}, "not a finite number"),
    ("returned", {"value": None}, "not a finite number"),
    ("returned", {"value": "1"}, "not a finite number"),
    ("returned", {"value": b"1"}, "not JSON serializable"),
    ("missing", {}, "no attribute 'missing'"),
    ("dying", {}, "died (exit code 7)"),
]


def test_a_verifier_that_fails_is_an_error_and_the_next_call_is_served():
    async def scenario(verifiers):
        for function, arguments, complaint in FAILURES:
            assert complaint in await failure(verifiers.call(f"{HERE}:{function}", **arguments))
            assert await verifiers.call(f"{HERE}:length", given="ab") == 2

    verified(scenario)


def test_a_right_answer_that_no_verifier_can_read_is_the_tasks_fault():
    async def scenario(verifiers):
        assert "cannot read the right answer" in await failure(verifiers.score(plain("math", "}"), "1"))
        assert "no verifier 'taste'" in await failure(verifiers.score(plain("taste", "1"), "1"))

    verified(scenario)


def test_a_verifier_that_hangs_is_killed_with_all_it_started_and_replaced(tmp_path):
    async def scenario(verifiers):
        first = await verifiers.call(f"{HERE}:pid")
        begun = time.monotonic()
        assert "longer than 0.4 s" in await failure(verifiers.call(f"{HERE}:hanging_deaf", mark=str(tmp_path / "m")))
        assert time.monotonic() - begun < 5
        pids = [int((tmp_path / name).read_text()) for name in ("m", "m.child")]
        assert pids[0] == first
        assert all(gone(pid) for pid in pids)
        assert await verifiers.call(f"{HERE}:pid") != first

    verified(scenario, deadline_s=0.4)


def test_a_cancelled_score_leaves_no_answer_for_the_next(tmp_path):
    async def scenario(verifiers):
        call = asyncio.create_task(verifiers.call(f"{HERE}:hanging", mark=str(tmp_path / "m")))
        while not (tmp_path / "m").exists() or not (tmp_path / "m").read_text():
            await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert gone(int((tmp_path / "m").read_text()))
        return await verifiers.call(f"{HERE}:length", given="abc")

    assert verified(scenario) == 3


def test_calls_wait_for_a_child_and_waiting_is_not_charged():
    async def scenario(verifiers):
        calls = [verifiers.call(f"{HERE}:length", given="x" * n) for n in range(20)]
        pids = await asyncio.gather(*(verifiers.call(f"{HERE}:pid") for _ in range(10)))
        return await asyncio.gather(*calls), len(set(pids))

    answers, children = verified(scenario, count=2, deadline_s=2.0)
    assert answers == list(range(20))
    assert children == 2


def test_a_verifier_killed_from_outside_is_replaced():
    async def scenario(verifiers):
        first = int(await verifiers.call(f"{HERE}:pid"))
        os.kill(first, signal.SIGKILL)
        while not gone(first):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        return first != await verifiers.call(f"{HERE}:pid")

    assert verified(scenario)


WORKER = """
import asyncio, sys
from prorl_cli.tasks import Verifiers

async def main():
    async with Verifiers(count=2) as verifiers:
        print(int(await verifiers.call("tests.verifier_examples:pid")), flush=True)
        hanging = verifiers.call("tests.verifier_examples:hanging_deaf", mark=sys.argv[1])
        await asyncio.gather(hanging, verifiers.call("tests.verifier_examples:pid"))

asyncio.run(main())
"""


def test_a_killed_worker_leaves_no_verifier_neither_idle_nor_busy(tmp_path):
    mark = tmp_path / "m"
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(mark)], stdout=subprocess.PIPE)
    try:
        worker.stdout.readline()
        while not mark.exists() or not mark.read_text():
            time.sleep(0.01)
        verifiers = [p.pid for p in psutil.Process(worker.pid).children()]
        assert len(verifiers) == 2
        assert int(mark.read_text()) in verifiers
    finally:
        worker.kill()
        worker.communicate()
    try:
        assert all(gone(pid) for pid in verifiers)
    finally:
        os.kill(int((tmp_path / "m.child").read_text()), signal.SIGKILL)


# ── what counts as the answer ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (" 42\n", "42"),
        ("So <answer> 1 </answer>, no, <answer>2</answer>.", "2"),
        ("It is \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("\\boxed{1} or \\boxed{2}", "2"),
        ("\\boxed{1", "\\boxed{1"),
        ("<answer>\\boxed{3}</answer>", "\\boxed{3}"),
        ("<answer>5", "<answer>5"),
        ("", ""),
    ],
)
def test_the_answer_in_a_final_turn(text, answer):
    assert extract_answer(text) == answer


def test_numbers_as_people_write_them():
    assert [as_number(t) for t in ("1,234.5", "$ 3", "50%", "-0", "1e2")] == [
        as_number(t) for t in ("1234.5", "3", "50", "0", "100")
    ]
    assert [as_number(t) for t in ("", "three", "1 2", "nan", "inf", "--1")] == [None] * 6
