"""A whole run on this machine, every command on it, and every orderly way to stop it and go on."""

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.spool.trajectories import read_trajectory
from tests.quick_run import live_roles, processes_of, prorl, start_prorl, status, until, write_recipe
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


@pytest.fixture
def going(tmp_path):
    """A launch in the background that has published some steps; ended with the test."""
    recipe = write_recipe(tmp_path, steps=100000)
    launch = start_prorl(tmp_path, "launch", recipe, "--run-dir", "run")
    root = tmp_path / "run"
    try:
        until(
            lambda: (
                launch.poll() is not None or ((root / "spool/steps").is_dir() and len(RunDir(root).positions()) > 1)
            ),
            90,
            "two steps",
        )
        assert launch.poll() is None, (tmp_path / "prorl.log").read_text()
        yield launch
    finally:
        launch.kill()
        launch.wait()
        until(lambda: not processes_of(tmp_path), 10, "the end of its processes")


def test_one_interrupt_drains_and_a_resume_goes_on(tmp_path, going):
    run = RunDir(tmp_path / "run")
    going.send_signal(signal.SIGINT)
    assert going.wait(80) == 3
    assert not processes_of(tmp_path)
    done = max(run.positions())
    check_ledger(run, done)
    assert status(tmp_path, "run")["state"] == "stopped"
    assert prorl(tmp_path, "resume", "run", "--set", f"learner.steps={done + 2}", timeout=120).returncode == 0
    check_ledger(run, done + 2)


def test_two_interrupts_stop_at_once_and_lose_nothing_finished(tmp_path, going):
    run = RunDir(tmp_path / "run")
    going.send_signal(signal.SIGINT)
    time.sleep(0.2)
    started = time.monotonic()
    going.send_signal(signal.SIGINT)
    assert going.wait(40) == 3
    assert time.monotonic() - started < 30
    assert not processes_of(tmp_path) and not leftovers(run)
    assert (
        prorl(tmp_path, "resume", "run", "--set", f"learner.steps={max(run.positions()) + 2}", timeout=120).returncode
        == 0
    )
    check_ledger(run, max(run.positions()))


def test_stop_ends_a_run_from_another_shell_and_a_running_run_is_not_resumed(tmp_path, going):
    refused = prorl(tmp_path, "resume", "run")
    assert refused.returncode == 2 and "already running" in refused.stderr
    assert live_roles(RunDir(tmp_path / "run"))
    assert prorl(tmp_path, "stop", "run", "--now").returncode == 0
    assert going.wait(60) == 3
    assert "already ended" in prorl(tmp_path, "stop", "run").stdout


def test_of_two_resumes_at_once_one_wins_and_the_other_says_so(tmp_path, going):
    going.send_signal(signal.SIGKILL)
    going.wait()
    until(lambda: not processes_of(tmp_path), 10, "the end of its processes")
    run = RunDir(tmp_path / "run")
    final = max(run.positions()) + 2
    both = [start_prorl(tmp_path, "resume", "run", "--set", f"learner.steps={final}") for _ in range(2)]
    codes = sorted(process.wait(120) for process in both)
    assert codes[0] == 0 and codes[1] in (2, 3)
    assert run.attempts() == [1, 2]
    log = (tmp_path / "prorl.log").read_text()
    assert "already running" in log or "has just claimed" in log
    check_ledger(run, final)
