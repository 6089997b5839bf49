"""Runs test files in a box and says of each test what became of it: plain Python 3.8, run by the image's interpreter.

Its text is handed to `python3 -I -B -c`: nothing in the working folder is imported in its place, and what is graded
comes last on the path, so that it cannot stand in for a module of the interpreter or for pytest. One JSON line a test,
`[nonce, id, outcome]`, goes to the first standard output, which nothing else writes to; what tests print goes to the
second. Refuses nothing: who reads the report decides. Called by `grading`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Settings come as JSON on standard input: nonce, runner, folder, files."""
    settings = json.loads(sys.stdin.read())
    report = os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    folder = str(Path.cwd())
    sys.path.append(folder)

    def say(test: str, outcome: str) -> None:
        os.write(report, (json.dumps([settings["nonce"], test, outcome]) + "\n").encode())

    run = run_pytest if settings["runner"] == "pytest" else run_unittest
    run(settings["files"], folder, say)
    sys.stdout.flush()
    os._exit(0)


def run_pytest(files: list[str], folder: str, say: Any) -> None:
    """By pytest's own ids."""
    import pytest

    class Reporter:
        def __init__(self) -> None:
            self.outcomes: dict[str, str] = {}

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.outcome != "passed" or report.when == "call":
                worse = "failed" in (report.outcome, self.outcomes.get(report.nodeid))
                self.outcomes[report.nodeid] = "failed" if worse else report.outcome
            if report.when == "teardown" and report.nodeid in self.outcomes:
                say(report.nodeid, self.outcomes.pop(report.nodeid))

    options = ["-q", "-p", "no:cacheprovider", "--import-mode=append", "--rootdir", folder]
    pytest.main([*options, *files], plugins=[Reporter()])


def run_unittest(files: list[str], folder: str, say: Any) -> None:
    """Classes of unittest, and plain functions whose names begin with `test`; ids are written as pytest's."""
    import unittest

    class Report(unittest.TestResult):
        def startTest(self, test: Any) -> None:
            super().startTest(test)
            self.outcome = "failed"
            self.bad = False

        def addSuccess(self, test: Any) -> None:
            self.outcome = "passed"

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self.outcome = "passed"

        def addSkip(self, test: Any, reason: str) -> None:
            self.outcome = "skipped"

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            super().addSubTest(test, subtest, err)
            self.bad = self.bad or err is not None

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            say(test.prorl_id, "failed" if self.bad else self.outcome)

    suite = unittest.TestSuite()
    for path in files:
        try:
            suite.addTests(tests_of(load(path, folder), path, unittest))
        except BaseException as error:  # noqa: BLE001 - its tests are not reported, which says it all
            sys.stderr.write(f"{path}: {type(error).__name__}: {error}\n")
    suite.run(Report())


def load(path: str, folder: str) -> Any:
    """The module in a file, under the name that it has as part of the folder."""
    name = path.rpartition(".")[0].replace("/", ".")
    spec: Any = importlib.util.spec_from_file_location(name, f"{folder}/{path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def tests_of(module: Any, path: str, unittest: Any) -> Any:
    """Each with its id."""
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and issubclass(value, unittest.TestCase):
            for method in unittest.defaultTestLoader.getTestCaseNames(value):
                test = value(method)
                test.prorl_id = "::".join([path, name, method])
                yield test
        elif name.startswith("test") and callable(value) and not isinstance(value, type):
            test = unittest.FunctionTestCase(value)
            test.prorl_id = "::".join([path, name])
            yield test


if __name__ == "__main__":
    main()
