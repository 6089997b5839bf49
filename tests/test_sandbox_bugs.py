"""The table of public bugs of sandboxes is complete, and each test that it names is collected where it must stand."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.sandbox_bugs import BUGS_OF_OTHERS, EVERY, FURTHER, OF_ONE_RUNTIME

ROOT = Path(__file__).parent.parent
ALL = (*BUGS_OF_OTHERS, *FURTHER)

ASKED_FOR = {
    "fork bomb", "disk bomb in the upper layer", "disk bomb in /tmp", "disk bomb in /dev/shm", "1 GB on a single line",
    "NUL, 0xff and CRLF in output", "paths with spaces, commas, colons, newlines", "the home of the host",
    "/proc/1/environ", "secrets in /proc/*/cmdline", "processes of the host", "env | grep -i key", "egress: DNS",
    "egress: IPv6", "egress: link-local metadata", "egress: sockets of the host by path", "egress: abstract sockets",
    "ptrace and kill of siblings", "/dev/fuse absent", "user namespaces off", "kill -9 of the driver",
    "two jobs building the same image on two nodes", "a half-written SIF", "a read-only cache",
    "a quota that is used up",
}  # fmt: skip


def test_every_one_of_the_forty_and_of_the_further_ones_has_a_test_or_a_reason():
    assert [bug.number for bug in BUGS_OF_OTHERS] == list(range(1, 41))
    assert len(FURTHER) == len(ASKED_FOR) and {bug.where for bug in FURTHER} == ASKED_FOR
    assert all(bug.where and (bug.seen or not bug.number) and (bug.tests or bug.reason) for bug in ALL)


def test_a_reason_without_a_test_is_the_exception():
    assert sum(not bug.tests for bug in ALL) <= 1


@cache
def collected():
    """For each test that the table names: the runtimes on which it is run."""
    files = sorted({test.split("::")[0] for bug in ALL for test in bug.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            test, _, case = line.partition("[")
            found.setdefault(test, set()).update(_runtimes(test, case))
    return found


def _runtimes(test, case):
    if bound := OF_ONE_RUNTIME.get(test.split("::")[0]):
        return {bound}
    return set(re.split(r"[-\]]", case)) & set(EVERY)


def test_every_test_that_the_table_names_is_collected():
    missing = [test for bug in ALL for test in bug.tests if test not in collected()]
    assert not missing, missing


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: str(bug.number or bug.where))
def test_it_stands_on_every_runtime_that_promises_so(bug):
    stands = set().union(*(collected().get(test, set()) for test in bug.tests))
    assert stands >= set(bug.on), f"not on {sorted(set(bug.on) - stands)}"


def test_a_test_that_opens_no_box_stands_on_no_runtime():
    assert _runtimes("tests/test_sandbox_bash.py::test_x", "kill -9 $$-137]") == set()
    assert _runtimes("tests/test_sandbox_hostile.py::test_x", "apptainer-/tmp]") == {"apptainer"}
