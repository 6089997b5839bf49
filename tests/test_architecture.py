"""The floors of CONTRIBUTING.md are law: a room imports only from lower floors; files and functions stay small."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "prorl_cli"

FLOORS = {
    "errors": 0, "trajectory": 0, "nodelocal": 0,
    "recipe": 1, "rundir": 1, "fsio": 1, "wire": 1,
    "spool": 2, "metrics": 2,
    "role": 3,
    "sandbox": 4, "engine": 4, "slurm": 4, "algorithm": 4,
    "images": 5, "router": 5,
    "agent": 6,
    "tasks": 7,
    "coordinator": 8, "rollout": 8, "learner": 8, "warmstart": 8,
    "report": 9,
    "cli": 10,
    "__main__": 11,
}  # fmt: skip

MAX_FILE, MAX_FUNCTION = 400, 50


def sources():
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(tree):
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "prorl_cli" else [f"prorl_cli.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "<relative>"
        for name in names:
            parts = name.split(".")
            if parts[0] == "prorl_cli" and len(parts) > 1:
                yield node.lineno, parts[1]


def floor_violations(path):
    own = room_of(path)
    for line, other in imported_rooms(ast.parse(path.read_text())):
        if other in (own, "__version__"):
            continue
        if other not in FLOORS or FLOORS[other] >= FLOORS[own]:
            yield f"{path.relative_to(PACKAGE.parent)}:{line}: {own} -> {other}"


def test_every_room_imports_only_from_lower_floors():
    found = [v for path in sources() if room_of(path) != "__init__" for v in floor_violations(path)]
    assert not found, "\n".join(found)


def test_an_upward_and_a_sibling_import_are_both_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "prorl_cli")
    room = tmp_path / "prorl_cli" / "spool.py"
    room.parent.mkdir()
    room.write_text("from prorl_cli.metrics import x\nimport prorl_cli.cli\nfrom prorl_cli.errors import y\n")
    assert [v.split(": ")[1] for v in floor_violations(room)] == ["spool -> metrics", "spool -> cli"]


def test_every_room_has_a_floor_and_says_its_sentence():
    for path in sources():
        room = room_of(path)
        assert room in FLOORS or room == "__init__", f"{path} belongs to no room"
        if path.stat().st_size:
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no module docstring"


def test_files_and_functions_stay_small():
    found = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > MAX_FILE:
            found.append(f"{path}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > MAX_FUNCTION:
                    found.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    assert not found, "\n".join(found)


def test_the_command_line_imports_no_heavy_library():
    code = (
        "import sys, prorl_cli.cli\n"
        "print([m for m in ('torch', 'vllm', 'deepspeed', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
