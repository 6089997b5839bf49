"""Bad input is one clear report, the exit code of its kind, and nothing half-written."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from prorl_cli.recipe import load_recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt
from tests.quick_run import environment, prorl, write_recipe


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, steps=3)


def refused(folder, *arguments, code=2):
    """The one report of a command that must fail with `code` and leave no run behind."""
    result = prorl(folder, *arguments, timeout=120)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "run").exists()
    return " ".join(result.stderr.split())


def test_init_prints_a_recipe_that_validates(tmp_path):
    (tmp_path / "my.yaml").write_text(prorl(tmp_path, "init", check=True).stdout)
    assert load_recipe(tmp_path / "my.yaml").name == "my-run"
    assert "ok" in prorl(tmp_path, "validate", "my.yaml", check=True).stdout


def test_the_schema_describes_every_key(tmp_path):
    schema = json.loads(prorl(tmp_path, "recipe", "schema", check=True).stdout)
    learner = schema["$defs"]["Learner"]["properties"]
    assert schema["additionalProperties"] is False and "clip" in learner["clip_high"]["description"]


def test_help_teaches_every_command(tmp_path):
    text = prorl(tmp_path, "--help", check=True).stdout
    for command in (
        "launch",
        "status",
        "samples",
        "logs",
        "stop",
        "resume",
        "ls",
        "spool",
        "explain",
        "attach",
        "clean",
        "doctor",
        "export",
        "eval",
        "validate",
        "init",
        "recipe",
    ):
        assert command in text
    assert prorl(tmp_path, "--version", check=True).stdout.startswith("prorl ")


def test_a_dry_run_prints_the_plan_and_makes_nothing(tmp_path, recipe):
    before = {path.name for path in tmp_path.iterdir()}
    text = prorl(tmp_path, "launch", recipe, "--run-dir", "run", "--dry-run", check=True).stdout
    for part in ("prorl_cli.warmstart", "prorl_cli.coordinator", "prorl_cli.rollout", str(tmp_path / "run")):
        assert part in text
    made_by_libraries = {"cache", "__pycache__"}
    assert {path.name for path in tmp_path.iterdir()} - made_by_libraries == before


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model=no/such/model", "no/such/model"),
        ("tasks.0.source=reasoning_gym:no_such_data", "no_such_data"),
        ("tasks.0.source=procedural:nothing", "nothing"),
        ("tasks.0.source=missing.jsonl", "missing.jsonl"),
        ("sandbox={runtime: bwrap, image: ./missing}", "sandbox.image: there is no"),
        ("tasks.0.handler=coin:Missing", "Missing"),
        ("tasks.0.handler=nowhere:Coin", "nowhere"),
        ("learner.steps=many", "valid integer"),
        ("learner.top_p=0.9", "biases the ratio"),
        ("nonsense", "key.key=value"),
    ],
)
def test_a_launch_that_cannot_work_is_refused_before_anything_is_made(tmp_path, recipe, override, expected):
    text = refused(tmp_path, "launch", recipe, "--run-dir", "run", "--set", override, *model_speaks_hermes(override))
    assert expected in text


@pytest.mark.parametrize("words", [["validate"], ["eval", "model"]])
def test_an_image_that_is_not_here_is_refused_whoever_asks(tmp_path, recipe, words):
    asked = "sandbox={runtime: bwrap, image: ./missing}"
    assert "sandbox.image: there is no" in refused(tmp_path, *words, recipe, "--set", asked)


def model_speaks_hermes(override):
    return ("--set", "agent.renderer=hermes") if override.startswith("model=") else ()


def test_more_held_out_tasks_than_a_file_has_are_refused(tmp_path, recipe):
    rows = [json.dumps({"question": f"What is {i}?", "answer": i}) for i in range(30)]
    (tmp_path / "few.jsonl").write_text("\n".join(rows))
    text = refused(
        tmp_path,
        "launch",
        recipe,
        "--run-dir",
        "run",
        "--set",
        "tasks.0.source=few.jsonl",
        "--set",
        "tasks.0.options={}",
        "--set",
        "eval.n=256",
    )
    assert "eval.n asks for 256 held-out tasks" in text


def test_rows_that_nobody_could_grade_are_refused_together(tmp_path, recipe):
    tests = {"cases": [{"command": ["true"]}], "timeout": 600}
    rows = [{"id": f"task-{n}", "question": f"Question {n}", "editable": ["a"], "tests": tests} for n in range(12)]
    rows.append({"question": "A slower one", "editable": ["a"], "tests": {**tests, "timeout": 700}})
    rows.append({"id": "handless", "question": "Fast", "editable": ["a"], "tests": {**tests, "timeout": 1}})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources = "tasks=[{domain: code, source: rows.jsonl}, {domain: math, source: rows.jsonl}]"
    text = refused(tmp_path, "launch", recipe, "--run-dir", "run", "--set", sources)
    assert re.search(r"tasks\.0: (task-\d+, ){2}task-\d+ and 9 more: its tests may take 600 s: rollout\.eval", text)
    assert "tasks.0: 'A slower one': its tests may take 700 s" in text
    assert re.search(r"tasks\.1: (task-\d+, ){2}task-\d+ and 11 more: it has tests: only the domains code and", text)
    assert "tasks.0: handless: its files are to be changed: agent.tools must have one of bash, edit, python" in text


def test_a_shipped_recipe_is_known_by_its_name(tmp_path):
    assert "ok (3 task sources" in prorl(tmp_path, "validate", "quickstart", check=True).stdout


def test_stop_says_when_there_is_nothing_to_stop(tmp_path):
    run = RunDir(tmp_path / "ended")
    run.create()
    claim_attempt(run, {"host": socket.gethostname(), "pid": 1, "pid_started": 0.0})
    assert "not running" in prorl(tmp_path, "stop", "ended", check=True).stdout


def test_broken_yaml_names_file_and_line(tmp_path):
    (tmp_path / "broken.yaml").write_text("name: x\ntasks: [1\nmodel: y\n")
    assert "broken.yaml:" in refused(tmp_path, "launch", "broken.yaml", "--run-dir", "run")
    assert "no such recipe" in refused(tmp_path, "launch", "missing.yaml")


def test_a_run_directory_in_use_is_never_mixed_with_another(tmp_path, recipe):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    assert "not empty" in refused(tmp_path, "launch", recipe, "--run-dir", "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "command", [["status"], ["resume"], ["stop"], ["samples"], ["logs"], ["spool", "verify"], ["export"]]
)
def test_every_command_refuses_what_is_not_a_run_or_another_versions(tmp_path, command):
    extra = ["out"] if command == ["export"] else []
    assert "not a run directory" in refused(tmp_path, *command, "nowhere", *extra)
    RunDir(tmp_path / "old").create()
    (tmp_path / "old/provenance.json").write_text('{"format": 999}')
    assert "another version of prorl" in refused(tmp_path, *command, "old", *extra)


def test_a_run_directory_that_cannot_be_written_is_refused(tmp_path, recipe):
    locked = tmp_path / "locked"
    locked.mkdir()
    if os.getuid() == 0:
        pytest.skip("root writes everywhere: CI runs this as an unprivileged user")
    locked.chmod(0o555)
    assert "cannot create the run directory" in refused(tmp_path, "launch", recipe, "--run-dir", "locked/run")


FILL_AND_FREE = """
mount -t tmpfs -o size={size} tmpfs {small} && head -c {filler} /dev/zero > {small}/filler
{python} -m prorl_cli launch {recipe} --run-dir {small}/run --set learner.steps=100000 > {folder}/full.out 2> {folder}/full.err
echo code $?
rm {small}/filler
{python} -m prorl_cli resume {small}/run --set learner.steps=$(($(ls {small}/run/spool/steps | wc -l) + 3)) > {folder}/freed.out 2> {folder}/freed.err
echo code $?
"""


@pytest.mark.soak
def test_a_disk_that_fills_in_the_middle_stops_the_run_in_words_and_a_resume_goes_on_when_there_is_room(
    tmp_path, recipe
):
    small = tmp_path / "small"
    small.mkdir()
    script = FILL_AND_FREE.format(
        size="20m", filler=19_300_000, small=small, python=sys.executable, recipe=recipe, folder=tmp_path
    )
    # In its namespace the user looks like root, whose node folder in /tmp may be the real root's.
    apart = {**environment(tmp_path), "TMPDIR": str(tmp_path)}
    command = ["unshare", "-Urm", "bash", "-c", script]
    result = subprocess.run(command, cwd=tmp_path, env=apart, capture_output=True, text=True, timeout=240)
    said = (tmp_path / "full.err").read_text()
    assert result.stdout.splitlines() in (["code 1", "code 0"], ["code 3", "code 0"]), (
        said + (tmp_path / "freed.err").read_text()
    )
    assert "No space left on device" in said and "prorl resume" in said and "Traceback" not in said


def test_a_full_disk_is_one_clear_report_and_leaves_nothing(tmp_path, recipe):
    unshare = shutil.which("unshare")
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=64k tmpfs {small} && head -c 60000 /dev/zero > {small}/filler && "
        f"{sys.executable} -m prorl_cli launch {recipe} --run-dir {small}/run; code=$?; ls {small}; exit $code"
    )
    result = subprocess.run(
        [unshare, "-Urm", "bash", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 2, result.stderr
    assert "full" in result.stderr and "Traceback" not in result.stderr
    assert result.stdout.split() == ["filler"]
