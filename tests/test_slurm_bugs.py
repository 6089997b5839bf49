"""The table of public launcher bugs is complete, and each test that it names exists."""

import ast
import re
from pathlib import Path

from tests.slurm_bugs import BUGS_OF_OTHERS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "prorl_cli"


def names_in(file):
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")}


def test_every_one_of_the_forty_one_has_a_test_or_a_reason():
    assert [bug.number for bug in BUGS_OF_OTHERS] == list(range(1, 42))
    assert all(bug.where and bug.seen and (bug.tests or bug.reason) for bug in BUGS_OF_OTHERS)


def test_every_test_that_the_table_names_exists():
    named = {test for bug in BUGS_OF_OTHERS for test in bug.tests}
    missing = [test for test in sorted(named) if test.split("::")[1] not in names_in(test.split("::")[0])]
    assert not missing, missing


def texts_of(*rooms):
    """Every string of these rooms that is not documentation."""
    for path in (path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path, node.value


def test_slurm_is_asked_for_text_with_explicit_columns_only():
    banned = re.compile(r"--(json|yaml|only-job-state|parsable2|helpformat)\b")
    found = [(path.name, text) for path, text in texts_of("slurm") if banned.search(text)]
    assert not found
    asked = [text for _, text in texts_of("slurm", "report", "cli") if text in ("squeue", "sinfo", "sacct")]
    assert asked, "the search finds what it looks for"


def test_no_value_travels_in_an_export_option():
    texts = [text for _, text in texts_of("slurm")] + [p.read_text() for p in (ROOT / "slurm_templates").glob("*.sh")]
    exports = {found for text in texts for found in re.findall(r"--export\S*", text)}
    assert exports == {"--export=ALL"}


def test_nobody_locks_a_file_that_nodes_share():
    """On the shared filesystem: what locks a folder of one node's own `/tmp` or `/dev/shm` is not asked here."""
    locks = re.compile(r"\b(flock|lockf|fcntl\.F_SETLK|sqlite3|mmap)\b")
    rooms = ("fsio", "spool", "role", "coordinator", "rollout", "learner", "router", "slurm", "report", "cli")
    code = [path for room in rooms for path in (PACKAGE / room).rglob("*.py")]
    assert not [path for path in code if any(locks.search(line) for line in imports_and_calls(path))]


def imports_and_calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield ast.unparse(node)[:300]
