"""A task's tests, run in a fresh box on what the policy made; what they say is believed as far as it cannot be forged.

- Of `cases` the box learns the questions only: output is compared here.
- A `suite` shares its interpreter with what it tests. Its report counts only with this run's nonce, only where every
  required test is in it as passed, and only where the control tests, of names and contents made up for this run and
  bound to fail, are in it as failed: who makes everything pass, passes nothing.
- A program that ends early, hangs, floods or breaks the box's limits has not passed. `InfraError` is raised only where
  the box died by nobody's doing, or lacks the interpreter.

Code that is written against this runner can still forge a suite's report from within; what must not be forged is
written as cases. Called by `tested`.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from prorl_cli.agent import LastingBox
from prorl_cli.errors import InfraError
from prorl_cli.sandbox.transfer import FileRefused
from prorl_cli.tasks.patch import MOST_FILES, READ_S, SKIPPED, Patch, Refused, may_go
from prorl_cli.tasks.placing import place, place_texts
from prorl_cli.tasks.tested_row import Case, Suite, TestedTask
from prorl_cli.trajectory import ErrorClass

_FLAGS = ("-I", "-B", "-c")
"""Deaf to the environment, to the working folder and to a user's packages; no bytecode written."""
_RUN_SUITE, _RUN_CALL = (
    Path(__file__).with_name(f"{name}_runner.py").read_text(encoding="utf-8") for name in ("suite", "call")
)
_REMOVE = """\
for file; do chmod u+w -- "$(dirname -- "$file")" 2>/dev/null; done
rm -f -- "$@"
"""
"""The policy may have opened folders to itself before it deleted what is in them."""
_CONTROL = """\
import unittest


def test_{name}():
    assert {one} == {other}


class Test{name}(unittest.TestCase):
    def test_{name}(self):
        self.assertEqual({one}, {other})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """How many tests there are, the ids of those that passed, and what was wrong with the first that did not."""

    tests: int
    passed: int
    complaint: str = ""


class _Ran(msgspec.Struct, frozen=True):
    """The answer of the box's `_execute`."""

    exit: int
    stdout: str
    stderr: str
    omitted: int


class _Missing(msgspec.Struct, frozen=True):
    """The answer of the box's `_missing`."""

    files: list[str]
    more: bool


class Grading:
    """One task's tests in `box`, which nothing has run in."""

    def __init__(self, task: TestedTask, box: LastingBox) -> None:
        self._task, self._tests, self._box = task, task.tests, box
        self._until = time.monotonic() + task.tests.timeout

    async def grade(self, patch: Patch) -> Graded:
        """Set the box up, run everything, and count."""
        await self._set_up(patch)
        failures = [await self._case(number, case) for number, case in enumerate(self._tests.cases)]
        if self._tests.suite:
            failures += await self._suite(self._tests.suite)
        complaints = list(filter(None, failures))
        passed = len(failures) - len(complaints)
        return Graded(tests=len(failures), passed=passed, complaint=complaints[0] if complaints else "")

    async def _set_up(self, patch: Patch) -> None:
        """The hidden files come last: nothing that the policy made may stand in their place."""
        folder, start = self._task.folder, self._task.files
        await self._delete(patch)
        try:
            await place_texts(self._box, folder, {path: start[path] for path in start.keys() - patch.deleted})
        except FileRefused as refusal:
            raise InfraError(ErrorClass.TASK, f"the task's own files have no place in its box: {refusal}") from refusal
        try:
            await place(self._box, folder, patch.files, patch.programs)
            await place_texts(self._box, folder, self._tests.files)
        except FileRefused as refusal:
            raise Refused(f"the work stands where other files belong: {refusal}") from refusal

    async def _delete(self, patch: Patch) -> None:
        """Of the image, what the policy has deleted and might."""
        if not patch.names:
            return
        task = self._task
        arguments = {
            "folder": task.folder, "there": patch.names, "skip": SKIPPED, "editable": task.editable, "most": MOST_FILES,
        }  # fmt: skip
        result = await self._box.call("_missing", arguments, READ_S)
        if result.outcome != "ok":
            raise InfraError(ErrorClass.VERIFIER, f"what was deleted cannot be told ({result.outcome})")
        missing = msgspec.json.decode(result.output, type=_Missing)
        if missing.more:
            raise Refused(f"more than {MOST_FILES} files are gone, or their names are too long")
        if gone := [path for path in missing.files if may_go(task, path)]:
            ran = await self._execute(["sh", "-c", _REMOVE, "sh", *gone], "")
            if isinstance(ran, str):
                raise InfraError(ErrorClass.VERIFIER, f"what was deleted cannot be deleted again: {ran}")
            if ran.exit:
                raise Refused(f"what was deleted cannot be deleted again: {ran.stderr[-200:]}")

    async def _case(self, number: int, case: Case) -> str:
        """What is wrong, in words; empty when the case passed."""
        name = case.id or f"case {number}"
        if case.command:
            ran = await self._execute(list(case.command), case.stdin)
            return _complaint(name, ran, lambda text: same_lines(text, case.stdout))
        module, _, function = case.call.partition(":")
        asked = json.dumps([module, function, case.arguments])
        ran = await self._execute([self._tests.python, *_FLAGS, _RUN_CALL], asked)
        return _complaint(name, ran, lambda text: same_json(text, case.returns))

    async def _suite(self, suite: Suite) -> list[str]:
        """A complaint a required test, empty where it passed."""
        nonce, control = secrets.token_hex(16), await self._put_control(suite)
        asked = {"nonce": nonce, "runner": suite.runner, "files": [*suite.files, control]}
        ran = await self._execute([self._tests.python, *_FLAGS, _RUN_SUITE], json.dumps(asked))
        if isinstance(ran, str):
            return [f"{test}: {ran}" for test in suite.ids]
        outcomes = read_report(ran.stdout.splitlines(), nonce)
        name = PurePosixPath(control).stem.removeprefix("test_")
        controls = {outcomes.pop(f"{control}::{test}", "") for test in (f"test_{name}", f"Test{name}::test_{name}")}
        if controls != {"failed"}:
            return [f"{test}: the report is not to be believed ({ran.stderr[-200:].strip()})" for test in suite.ids]
        return ["" if outcomes.get(test) == "passed" else _unpassed(test, outcomes, ran) for test in suite.ids]

    async def _put_control(self, suite: Suite) -> str:
        """Beside the first test file, so that whoever collects that one collects it."""
        name = secrets.token_hex(6)
        path = str(PurePosixPath(suite.files[0]).with_name(f"test_{name}.py"))
        text = _CONTROL.format(name=name, one=secrets.randbits(60), other=secrets.randbits(60))
        await place_texts(self._box, self._task.folder, {path: text})
        return path

    async def _execute(self, argv: list[str], stdin: str) -> _Ran | str:
        """What a program did; in words, what kept it from doing it."""
        left_s = self._until + self._box.lost_s - time.monotonic()
        if left_s <= 0:
            return "the time for all tests was over"
        arguments = {"argv": argv, "stdin": stdin, "cwd": self._task.folder}
        result = await self._box.call("_execute", arguments, left_s)
        if result.outcome == "error":
            raise InfraError(ErrorClass.VERIFIER, f"tests cannot be run in the box: {result.output}")
        if result.outcome != "ok":
            return f"{result.outcome} within {left_s:.3g} s"
        return msgspec.json.decode(result.output, type=_Ran)


def _complaint(name: str, ran: _Ran | str, right: Any) -> str:
    if isinstance(ran, str):
        return f"{name}: {ran}"
    if ran.exit:
        return f"{name}: exit status {ran.exit}: {ran.stderr[-200:].strip()}"
    return "" if not ran.omitted and right(ran.stdout) else f"{name}: another output: {ran.stdout[:200]!r}"


def _unpassed(test: str, outcomes: dict[str, str], ran: _Ran) -> str:
    return f"{test}: {outcomes.get(test) or f'not run (exit status {ran.exit}: {ran.stderr[-200:].strip()})'}"


def read_report(lines: Iterable[str], nonce: str) -> dict[str, str]:
    """Outcome by test id. Lines without the nonce do not count; a test with two outcomes has failed."""
    outcomes: dict[str, str] = {}
    for line in lines:
        try:
            mark, test, outcome = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if mark == nonce and isinstance(test, str):
            outcomes[test] = "failed" if outcomes.get(test, outcome) != outcome else str(outcome)
    return outcomes


def same_lines(given: str, wanted: str) -> bool:
    """Equal but for white space at the ends of lines and empty lines at the end."""
    return [line.rstrip() for line in given.rstrip().split("\n")] == [
        line.rstrip() for line in wanted.rstrip().split("\n")
    ]


def same_json(text: str, wanted: Any) -> bool:
    """Whether `text` is JSON for `wanted`; floats may differ in the last digits, true is not 1."""
    try:
        return same_value(json.loads(text), wanted)
    except (ValueError, OverflowError, RecursionError):
        return False


def same_value(given: Any, wanted: Any) -> bool:
    """See `same_json`."""
    if isinstance(wanted, bool) or isinstance(given, bool):
        return given is wanted
    if isinstance(wanted, float) and isinstance(given, int | float):
        return math.isclose(given, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(wanted, list | tuple) and isinstance(given, list):
        return len(given) == len(wanted) and all(map(same_value, given, wanted))
    if isinstance(wanted, dict) and isinstance(given, dict):
        return given.keys() == wanted.keys() and all(same_value(given[key], wanted[key]) for key in wanted)
    return bool(type(given) is type(wanted) and given == wanted)
