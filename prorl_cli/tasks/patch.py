"""What of a policy's work is graded: the files it changed, where its task lets it; pure but for reading them.

Dropped, and counted: what lies elsewhere, links, and whatever a test runner or Python's start would take for its own
(see `_MEDDLES`). Refuses work of unbounded size. Called by `tested`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import msgspec

from prorl_cli.agent import LastingBox
from prorl_cli.sandbox.transfer import FileRefused
from prorl_cli.tasks.tested_row import TestedTask, is_inside

MOST_FILES = 1000
MOST_BYTES = 4 * 2**20
"""Of all files together; what a policy writes by hand is thousands of times smaller."""
SKIPPED = (".git", "__pycache__", ".pytest_cache", ".mypy_cache", "node_modules")
READ_S = 60.0

_MEDDLES = (
    "conftest.py", "sitecustomize.py", "usercustomize.py", "test_*.py", "*_test.py", "*.pth", "*.pyc", "*.so",
    "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg", "setup.py", "pyproject.toml", "pyvenv.cfg",
    ".coveragerc", "noxfile.py", "unittest.py", "pytest.py",
)  # fmt: skip
_MEDDLING_FOLDERS = frozenset({"test", "tests", "testing", ".git", "__pycache__", "_pytest", "pytest", "unittest"})
_FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


class Refused(Exception):
    """Nothing can be graded, through the policy's own doing; in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Files to grade, in place of the task's own; of them `programs` may be executed. `deleted` are start files;
    `names` are what is left in the folders whose names have changed. `dropped` counts what was left out."""

    files: dict[str, bytes]
    programs: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    names: dict[str, list[str]] = field(default_factory=dict)
    dropped: int = 0
    examples: tuple[str, ...] = ()
    """Of what was dropped."""


class _Listing(msgspec.Struct, frozen=True):
    """The answer of the box's `_changed`."""

    files: tuple[tuple[str, int, bool], ...]
    folders: dict[str, list[str]]
    links: int
    others: int
    more: bool


def from_answer(task: TestedTask, answer: str) -> Patch:
    """The last fenced block of the final answer, or all of it."""
    blocks = _FENCED.findall(answer)
    text = blocks[-1] if blocks else answer
    if not text.strip():
        raise Refused("the answer is empty")
    programs = {task.answer_file} if text.startswith("#!") else set[str]()
    return Patch(files={task.answer_file: text.encode("utf-8", "replace")}, programs=frozenset(programs))


async def from_box(task: TestedTask, box: LastingBox) -> Patch:
    """What the policy left in the folder. `Refused` for what it broke, `InfraError` for what it did not."""
    if (await box.call("_still", {}, READ_S)).outcome == "dead":
        raise Refused("the box could not be brought to rest")
    arguments = {"folder": task.folder, "skip": SKIPPED, "most": MOST_FILES}
    result = await box.call("_changed", arguments, READ_S)
    if result.outcome != "ok":
        raise Refused(f"the folder cannot be listed ({result.outcome}): {result.output[:200]}")
    listing = msgspec.json.decode(result.output, type=_Listing)
    there = {path: size for path, size, _ in listing.files}
    chosen, dropped = sort_out(task, there)
    if listing.more:
        raise Refused(f"more than {MOST_FILES} files were changed")
    if (total := sum(there[path] for path in chosen)) > MOST_BYTES:
        raise Refused(f"the changed files hold {total} bytes (at most {MOST_BYTES})")
    try:
        files = {path: await box.get(f"{task.folder}/{path}", MOST_BYTES) for path in chosen}
    except FileRefused as refusal:
        raise Refused(str(refusal)) from refusal
    return Patch(
        files=files,
        programs=frozenset(path for path, _, program in listing.files if program),
        deleted=frozenset(path for path in task.files if path not in there and may_go(task, path)),
        names=listing.folders,
        dropped=len(dropped) + listing.links + listing.others,
        examples=tuple(dropped[:3]),
    )


def sort_out(task: TestedTask, paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Those that are graded, and those that are not. The task's own files that lie outside of what is editable are
    neither: they were put there, and are put again."""
    chosen, dropped = list[str](), list[str]()
    for path in paths:
        if is_editable(task, path):
            chosen.append(path)
        elif path not in task.files:
            dropped.append(path)
    return chosen, dropped


def may_go(task: TestedTask, path: str) -> bool:
    """Whether a file that is not there any more was the policy's to delete: a listing would name it at all."""
    return is_editable(task, path) and set(SKIPPED).isdisjoint(PurePosixPath(path).parts)


def is_editable(task: TestedTask, path: str) -> bool:
    """Whether the policy's version of a file counts. A path that a task names exactly counts whatever it is called."""
    if not is_inside(path):
        return False
    return path in task.editable or (any(fnmatchcase(path, p) for p in task.editable) and not meddles(path))


def meddles(path: str) -> bool:
    """Whether a test runner or Python's start would take a file for its own."""
    *folders, name = PurePosixPath(path).parts
    return any(fnmatchcase(name, pattern) for pattern in _MEDDLES) or not _MEDDLING_FOLDERS.isdisjoint(folders)
