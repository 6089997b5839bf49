"""A task whose outcome is graded by tests: one row of a JSONL file, checked whole before anything runs.

    {"question": "Write add(a, b) in task/solution.py.", "files": {"solution.py": "def add(a, b): ...\\n"},
     "editable": ["solution.py"], "tests": {"cases": [{"call": "solution:add", "arguments": [1, 2], "returns": 3}]}}

| key           | value                                                                                            |
|---------------|--------------------------------------------------------------------------------------------------|
| `question`    | text, not blank; it should name the folder and what may be changed                               |
| `id`          | text                                                                                             |
| `folder`      | where the work is: below the box's home, or an absolute path of the image; default `task`        |
| `files`       | path in the folder → text, put there before the first turn and before grading; what begins with  |
|               | `#!` may be executed                                                                             |
| `editable`    | patterns of paths in the folder; what the policy changed there is graded, all else is not         |
| `answer_file` | the code in the final answer is graded as this file, instead of what is in the box               |
| `tests`       | hidden from the policy, see below                                                                |

Of `tests`: `cases` are programs whose output is compared outside of the box, so that what is graded never meets what it
should give: `{"command": ["python3", "solution.py"], "stdin": "1 2", "stdout": "3"}` (white space at the ends of lines
aside; exit status 0), or `{"call": "module:function", "arguments": [...], "returns": ...}` (plain JSON). `suite` is a
set of test files that run in the graded code's own interpreter: `{"runner": "pytest" | "unittest", "ids":
["tests/test_a.py::test_b", …]}`, every one of which must pass. `files` (path → text) are put into the folder for
grading alone, as those of the task are; `python` is the interpreter of calls and suites, `timeout` the seconds that all
of it may take.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

from prorl_cli.tasks.source import Item

KEYS = ("question", "id", "folder", "files", "editable", "answer_file", "tests")


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One program, or one call of a function."""

    id: str = ""
    command: tuple[str, ...] = ()
    stdin: str = ""
    stdout: str = ""
    call: str = ""
    arguments: tuple[Any, ...] = ()
    returns: Any = None


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests in files, by their ids."""

    runner: Literal["pytest", "unittest"]
    ids: tuple[str, ...]

    @property
    def files(self) -> list[str]:
        """The files that hold the tests, each once."""
        return list(dict.fromkeys(test.partition("::")[0] for test in self.ids))


class Tests(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the policy never sees."""

    cases: tuple[Case, ...] = ()
    suite: Suite | None = None
    files: dict[str, str] = {}
    python: str = "python3"
    timeout: float = 60.0


class TestedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row without its question."""

    tests: Tests
    id: str = ""
    folder: str = "task"
    files: dict[str, str] = {}
    editable: tuple[str, ...] = ()
    answer_file: str = ""


def tested_item(row: dict[str, Any]) -> Item:
    """The item of a row with `tests`; ValueError says what is wrong with it."""
    rest = {key: value for key, value in row.items() if key != "question"}
    try:
        task = msgspec.convert(rest, TestedTask)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("Object", "a task with tests")) from None
    if mistakes := [*_mistakes(task)]:
        raise ValueError("; ".join(mistakes))
    return Item(question=row["question"], answer="", payload={"tested": task, "expression": None, "id": task.id})


def _mistakes(task: TestedTask) -> Iterable[str]:
    tests, suite = task.tests, task.tests.suite
    if not tests.cases and not (suite and suite.ids):
        yield "tests has neither cases nor a suite with ids"
    elif suite and not suite.ids:
        yield "tests.suite has no ids"
    if bool(task.editable) == bool(task.answer_file):
        yield "either editable or answer_file says what is graded"
    if not tests.timeout > 0:  # what is no number is not positive either
        yield f"tests.timeout must be positive, got {tests.timeout:g}"
    if "\0" in task.folder or ".." in PurePosixPath(task.folder).parts:
        yield f"folder must not leave the box's home, got {task.folder!r}"
    named = [*task.files, *tests.files, *filter(None, [task.answer_file]), *(suite.files if suite else ())]
    yield from (f"{path!r} is no path inside the folder" for path in named if not is_inside(path))
    yield from (
        f"case {n} needs either command or call, as module:function" for n, c in enumerate(tests.cases) if not _one(c)
    )


def _one(case: Case) -> bool:
    module, colon, name = case.call.partition(":")
    is_call = bool(colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")))
    return (bool(case.command) and not case.call) or (is_call and not case.command)


def is_inside(path: str) -> bool:
    """Whether a path stays below the folder that it starts from, as written."""
    pure = PurePosixPath(path)
    return bool(path) and path.isprintable() and str(pure) == path and not pure.is_absolute() and ".." not in pure.parts
