"""Finding a run by its job, its logs over several attempts, why it died, and what of its directory may go."""

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from prorl_cli import fsio
from prorl_cli.cli import cleaning, jobs, look, registry
from prorl_cli.errors import UserError
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.attach import attach_command, attach_satellite
from prorl_cli.slurm.plan import plan_processes
from prorl_cli.slurm.shape import groups
from prorl_cli.slurm.submit import Request, record_job, write_folder
from prorl_cli.slurm.topology import topology, write_topology
from prorl_cli.spool.members import (
    Endpoint,
    Obituary,
    Outcome,
    claim_attempt,
    publish_outcome,
    write_endpoint,
    write_obituary,
)
from tests.quick_run import ROOT
from tests.test_slurm_preflight import recipe

NODES = {
    "SLURM_HET_SIZE": "3", "SLURM_JOB_ID": "42",
    **{f"SLURM_JOB_ID_HET_GROUP_{n}": str(42 + n) for n in range(3)},
    **{f"SLURM_JOB_NODELIST_HET_GROUP_{n}": f"node{n}" for n in range(3)},
    **{f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{n}": "4" for n in range(3)},
}  # fmt: skip


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Puts scripts in the place of Slurm's commands; at first they know no job."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(**bodies):
        for name, body in bodies.items():
            (folder / name).write_text(f"#!/bin/bash\n{body}\n")
            (folder / name).chmod(0o700)

    for name in ("squeue", "scontrol", "sacct", "srun"):
        install(**{name: "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"})
    return install


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "a run, 'with' |signs")
    run.create()
    run.recipe.write_text("name: asked\n")
    return run


def submitted(run, token="t", job_id=42, satellite=None):
    write_folder(run, recipe(), Request(token=token, satellite=satellite))
    record_job(run, token, job_id)


def attempted(run, job_id=42):
    attempt = claim_attempt(run, {"job_id": job_id})
    fsio.publish(run.resolved(attempt), recipe().model_dump_json().encode())
    fsio.make_folder(run.logs / str(attempt))
    run.latest_logs.unlink(missing_ok=True)
    run.latest_logs.symlink_to(str(attempt))
    return attempt


def test_a_run_is_found_by_any_job_it_ever_was(run, commands):
    submitted(run)
    submitted(run, "later", 50)
    registry.remember(run.root)
    assert registry.find(Path("42")) == registry.find(Path("50")) == registry.find(None) == run.root
    assert registry.find(run.root) == run.root


def test_a_job_that_no_file_tells_of_is_found_by_its_comment_and_folder(run, commands):
    submitted(run)
    commands(squeue=f"cat <<'END'\nprorl:t|{run.submission('t')}\nEND")
    assert registry.find(Path("42")) == registry.find(Path("42+1")) == run.root


@pytest.mark.parametrize("said", ["", "echo '(null)|/home/somebody'", "echo 'prorl:other|/home/submitted-t'"])
def test_a_job_that_is_none_of_ours_is_refused(run, commands, said):
    commands(squeue=said)
    with pytest.raises(UserError, match="job 42 belongs to none"):
        registry.find(Path("42"))


def test_a_folder_with_a_number_for_a_name_is_a_folder(run, commands, tmp_path, monkeypatch):
    (tmp_path / "42").mkdir()
    monkeypatch.chdir(tmp_path)
    assert registry.find(Path("42")) == Path("42")


def test_without_any_run_it_is_said_how_to_start_one(tmp_path, commands):
    with pytest.raises(UserError, match="no run yet"):
        registry.find(None)


def test_ls_shows_every_run_with_its_job_and_asks_once(run, commands, capsys, tmp_path):
    submitted(run)
    registry.remember(run.root)
    broken = RunDir(tmp_path / "broken")
    broken.create()
    registry.remember(broken.root)
    commands(squeue=f"echo x >>{tmp_path}/calls; echo '42|42|PENDING|Priority||N/A|30:00|cpu'")
    look.list_runs(False)
    out = capsys.readouterr().out
    assert f"queued         0/100   {run.root}  job 42 PENDING" in out and "unreadable" in out
    assert (tmp_path / "calls").read_text() == "x\n"


def test_explain_says_why_a_job_waits(run, commands, capsys):
    submitted(run)
    commands(
        squeue="echo '42|42+0|PENDING|PartitionTimeLimit||N/A|30:00|cpu'; echo '43|42+1|PENDING|None||N/A|30:00|gpu'"
    )
    registry.remember(run.root)
    jobs.explain(Path("42"))
    out = capsys.readouterr().out
    for words in (
        "is queued",
        "job 42 is PENDING",
        "never start",
        "cluster.time",
        "no estimate yet",
        "part  1 (job 43, gpu)",
    ):
        assert words in out


def test_explain_ends_with_the_last_words_of_who_died_and_of_the_job(run, commands, capsys):
    submitted(run)
    attempt = attempted(run)
    name = f"learner-n-{attempt}-00000000"
    write_endpoint(
        run,
        Endpoint(incarnation=name, role="learner", node="n", attempt=attempt, pid=1, pid_started=1.0, slot="learner-0"),
    )
    write_obituary(run, Obituary(incarnation=name, code=1, reason="exited with code 1"))
    run.log(attempt, "learner-0").write_text("CUDA went away\n")
    run.job_log("t", 42).write_text("prorl: the run failed\n")
    publish_outcome(run, attempt, Outcome(state="failed", reason="learner-0 kept dying", step=3))
    jobs.explain(run.root)
    out = capsys.readouterr().out
    for words in (
        "job 42 is FAILED",
        "learner-0 kept dying",
        "CUDA went away",
        "prorl: the run failed",
        "from  record",
    ):
        assert words in out


def test_explain_tells_of_a_job_that_is_no_run_too(commands, capsys):
    commands(squeue="echo '7|7|RUNNING|None|cpu1|2026-11-30T15:47:23|1:00:00|cpu'")
    jobs.explain(Path("7"))
    assert "job 7 is RUNNING" in capsys.readouterr().out


def test_explain_of_a_run_of_this_machine_asks_no_slurm(run, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    attempted(run)
    jobs.explain(run.root)
    assert "is starting" in capsys.readouterr().out


def test_a_shell_is_opened_beside_a_role_in_its_component_and_takes_nothing():
    asked = recipe()
    found = topology(groups(asked), NODES)
    process = next(one for one in plan_processes(asked, has_weights=True).roles if one.name == "engine-0")
    command = attach_command(found, process)
    assert command[:4] == ["srun", "--jobid=42", "--het-group=1", "--nodelist=node1"]
    assert {"--overlap", "--mem=0", "--pty"} <= set(command) and command[-1] == "bash"
    assert attach_satellite(50)[:2] == ["srun", "--jobid=50"]


def test_attach_becomes_that_shell(run, commands, tmp_path):
    submitted(run)
    write_topology(run, attempted(run), topology(groups(recipe()), NODES))
    commands(srun=f'printf "%s|" "$@" >{tmp_path}/called')
    registry.remember(run.root)
    done = prorl(tmp_path, "attach", 42, "learner")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "called").read_text().startswith("--jobid=42|--het-group=2|--nodelist=node2|--overlap|")
    assert "no role 'lerner'" in prorl(tmp_path, "attach", run.root, "lerner").stderr


def test_attach_to_a_run_of_this_machine_says_where_it_is(run, capsys):
    attempted(run)
    jobs.attach(run.root, "learner")
    assert "this machine" in capsys.readouterr().out


def test_logs_follow_a_run_from_its_queue_through_its_attempts(run, commands, capsys):
    submitted(run)
    run.job_log("t", 42).write_text("attempt 1 in job 42\n")
    first = attempted(run)
    run.log(first, "learner-0").write_text("step 1\n")
    follower = threading.Thread(target=look.logs, args=(run.root, "", 20, True), daemon=True)
    follower.start()
    time.sleep(0.3)
    second = attempted(run)
    run.log(second, "learner-0").write_text("step 2 of the next attempt\n")
    out = ""
    deadline = time.monotonic() + 20
    while "step 2 of the next attempt" not in out and time.monotonic() < deadline:
        time.sleep(0.1)
        out += capsys.readouterr().out
    assert "job 42" in out and "step 1" in out and "learner-0: step 2 of the next attempt" in out


def test_a_log_that_is_not_there_is_said_with_those_that_are(run, commands):
    attempted(run)
    run.log(1, "engine-0").write_text("x\n")
    with pytest.raises(UserError, match="engine-0"):
        look.logs(run.root, "lerner", 20, False)


def test_what_a_resume_an_export_and_the_reference_need_is_kept():
    kept = cleaning.kept(list(range(13)), [4, 8], {0: 0.1, 5: 0.9, 12: 0.5}, max_staleness=1)
    assert kept.weights == {0, 5, 8, 9, 10, 11, 12} and kept.checkpoints == {8}
    assert cleaning.kept([0, 1], [], {}, 1).weights == {0, 1}


def test_clean_prints_first_and_removes_only_when_told(run, capsys):
    publish_outcome(run, attempted(run), Outcome(state="stopped", reason="a stop was ordered", step=6))
    for number in range(7):
        run.weight(number).mkdir()
        (run.weight(number) / "model.safetensors").write_bytes(b"x" * 5000)
    for step in (2, 6):
        run.checkpoint(step).mkdir()
    (run.steps / ".tmp-0123").write_text("left by a killed writer")
    before = sorted(run.root.rglob("*"))
    cleaning.clean(run.root, yes=False)
    assert sorted(run.root.rglob("*")) == before and "may go" in capsys.readouterr().out
    cleaning.clean(run.root, yes=True)
    assert sorted(run.weight_folders()) == [0, 4, 5, 6] or sorted(run.weight_folders()) == [0, 5, 6]
    assert run.checkpoint_steps() == [6] and not (run.steps / ".tmp-0123").exists()
    cleaning.clean(run.root, yes=True)
    assert "nothing in it may go" in capsys.readouterr().out


def prorl(folder, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "prorl_cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, **options)


def test_help_and_status_work_under_the_process_limit_of_a_login_node(run, tmp_path, commands):
    """The limit counts a user's processes and threads; root is not held to it, so the test gives root away."""
    attempted(run)
    mine = sum(1 for _ in _threads_of(os.getuid()))
    limit = (50, 50) if os.getuid() == 0 else (mine + 50, mine + 50)

    def low():
        resource.setrlimit(resource.RLIMIT_NPROC, limit)

    for arguments in (["--help"], ["status", run.root, "--once"]):
        done = prorl(tmp_path, *arguments, preexec_fn=low)
        assert done.returncode == 0 and done.stdout, done.stderr


def test_checking_a_recipe_starts_no_thread_a_core(tmp_path):
    code = (
        "import sys, os\nfrom prorl_cli.cli import main\nsys.argv = ['prorl', 'validate', 'quickstart']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('numpy' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["True", "1"], "numpy is loaded, and one thread runs"


def _threads_of(uid):
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == uid:
                    yield from (folder / "task").iterdir()
            except OSError:
                continue


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1", ""])
def test_the_language_of_a_terminal_stops_no_command(run, tmp_path, commands, locale, monkeypatch):
    attempted(run)
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setenv("LANG", locale)
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    run.log(1, "learner-0").write_text("π → 3\n")
    for arguments in (["--help"], ["status", run.root], ["logs", run.root], ["explain", run.root]):
        done = prorl(tmp_path, *arguments, errors="replace")
        assert done.returncode == 0, done.stderr
