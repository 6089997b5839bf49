"""A whole run on this machine, and every command on it."""

import json
import shutil
import subprocess
import sys

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.spool.trajectories import read_trajectory
from tests.quick_run import processes_of, prorl, status, write_recipe
from tests.run_ledger import check_ledger, leftovers

STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def launched(folder):
    """The finished `prorl launch` of a short run with evaluations."""
    recipe = write_recipe(folder, steps=STEPS, workers=2, evaluated=12)
    return prorl(folder, "launch", recipe, "--run-dir", "run", timeout=180)


@pytest.fixture
def run(folder, launched):
    assert launched.returncode == 0, launched.stdout + launched.stderr
    return RunDir(folder / "run")


def test_a_launch_ends_with_a_summary_and_leaves_a_sound_run(folder, launched, run):
    text = " ".join(launched.stdout.split())
    for expected in (
        "done",
        "pass@1 before training",
        "pass@1 after training",
        "trajectories/min",
        "s per step",
        "bottleneck",
        "prorl samples",
    ):
        assert expected in text
    check_ledger(run, STEPS)
    assert not processes_of(folder) and not leftovers(run)


def test_the_run_directory_is_its_owner_s_alone(run):
    assert run.root.stat().st_mode & 0o777 == 0o700
    for token in (run.data_token, run.admin_token):
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text() not in "".join(log.read_text() for log in run.logs.rglob("*.log"))


def test_status_for_machines_agrees_with_the_run(folder, run):
    picture = status(folder, "run")
    assert (picture["state"], picture["step"], picture["steps"]) == ("done", STEPS, STEPS)
    assert picture["eval"]["before"]["n"] == picture["eval"]["after"]["n"] == 12
    assert picture["trajectories"]["finished"] >= STEPS * 4
    assert picture["throughput"]["tokens_per_s"] > 0 and picture["learner"]["entropy"] > 0
    assert len(picture["reward_curve"]) == STEPS


def test_every_trained_token_is_at_most_one_version_old(run):
    for manifest in check_ledger(run, STEPS):
        for ref in manifest.records:
            oldest, newest = read_trajectory(run, ref).versions
            assert manifest.position - 2 <= oldest <= newest < manifest.position


def test_samples_reads_transcripts(folder, run):
    text = prorl(folder, "samples", "run", "-n", "2", check=True).stdout
    assert "arithmetic problem" in text and "reward" in text
    found = json.loads(prorl(folder, "samples", "run", "--step", "2", "--best", "--json", "-n", "3", check=True).stdout)
    assert len(found) == 3 and found[0]["reward"] == 1.0
    assert {piece["author"] for piece in found[0]["transcript"]} == {"policy", "context"}


def test_logs_shows_a_role_and_names_the_roles_there_are(folder, run):
    assert "position" in prorl(folder, "logs", "run", "coordinator", check=True).stdout
    unknown = prorl(folder, "logs", "run", "janitor")
    assert unknown.returncode == 2 and "learner-0" in unknown.stderr


def test_ls_finds_the_run(folder, run):
    rows = json.loads(prorl(folder, "ls", "--json", check=True).stdout)
    assert {"run": str(folder / "run"), "state": "done", "step": STEPS, "steps": STEPS} in rows


def test_spool_verify_passes_a_sound_run_and_points_at_a_flipped_byte(folder, run):
    assert prorl(folder, "spool", "verify", "run").returncode == 0
    shutil.copytree(folder / "run", folder / "damaged", symlinks=True)
    segment = max((folder / "damaged/spool/trajectories").rglob("*.seg"), key=lambda path: path.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    result = prorl(folder, "spool", "verify", "damaged", "--json")
    assert result.returncode == 1
    assert [row["file"] for row in json.loads(result.stdout) if row["kind"] == "corrupt"] == [str(segment)]


def test_an_export_is_a_folder_that_transformers_loads_and_eval_scores(folder, run):
    assert prorl(folder, "export", "run", "exported").returncode == 0
    check = "import sys, transformers as t; t.AutoModelForCausalLM.from_pretrained(sys.argv[1]); t.AutoTokenizer.from_pretrained(sys.argv[1])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", check, str(folder / "exported")], check=True)
    assert prorl(folder, "export", "run", "exported").returncode == 2
    result = prorl(folder, "eval", "exported", "quick.yaml", "--run-dir", "scored", "--json", timeout=120)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["n"] == 12


def test_a_resume_of_what_is_done_says_so_and_starts_nothing(folder, run):
    again = prorl(folder, "resume", "run")
    assert again.returncode == 0 and "is done" in again.stdout
    assert run.attempts() == [1]


def test_resume_takes_more_steps_shows_the_change_and_refuses_what_would_lie(folder, run):
    for override, expected in (
        ("seed=9", "cannot change seed"),
        ("learner.steps=2", "already done"),
        ("tasks.0.weight=2", "tasks"),
    ):
        refused = prorl(folder, "resume", "run", "--set", override)
        assert refused.returncode == 2 and expected in refused.stderr
    assert run.attempts() == [1]
    resumed = prorl(folder, "resume", "run", "--set", f"learner.steps={STEPS + 3}", timeout=120)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert f"learner.steps: {STEPS} → {STEPS + 3}" in resumed.stdout
    check_ledger(run, STEPS + 3)


def test_resume_can_go_back_to_a_checkpoint_and_train_on(folder, run):
    last, kept = max(run.positions()), run.checkpoint_steps()[0]
    resumed = prorl(folder, "resume", "run", "--restore", str(kept), "--set", f"learner.steps={last + 3}", timeout=120)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    kinds = [str(manifest.kind) for manifest in check_ledger(run, last + 3)]
    assert kinds == ["step"] * last + ["restore", "step", "step"]
    assert prorl(folder, "resume", "run", "--restore", "77").returncode == 2
