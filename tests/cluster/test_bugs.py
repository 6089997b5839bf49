"""What broke other launchers on real clusters: the user's shell, names, shared nodes, no accounts."""

import json
import os
import pty
import select
import subprocess
import sys
import time

from prorl_cli.spool.members import read_outcome
from tests.cluster.cluster_run import HETJOB, attempt, last_words, launch, step, submitted, wait_steps, write_recipe
from tests.cluster.slurm_cluster import TERMINAL
from tests.quick_run import environment, prorl, until

SHELL = {
    "SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1", "SQUEUE_FORMAT": "%j", "SQUEUE_STATES": "CD",
    "SLURM_TIME_FORMAT": "relative", "http_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9", "SLURM_HET_SIZE": "7", "SLURM_MEM_PER_CPU": "1", "SLURM_CPU_BIND": "none",
    "SLURM_TRES_PER_TASK": "cpu:9", "TMPDIR": "/nowhere", "LC_ALL": "C",
}  # fmt: skip

NAMES = ("a hetjob, of 'mine' | \"two\"", "--other $HOME; #SBATCH hetjob")


def done(cluster, run, seconds=300):
    """The run's outcome, once its job has ended."""
    until(
        lambda: cluster.state(submitted(run)[0]) in (*TERMINAL, "GONE"), seconds, f"the end of a job\n{last_words(run)}"
    )
    return read_outcome(run, attempt(run))


def typed(folder, run, role, text, seconds=60):
    """What a shell beside `role` shows on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "prorl_cli", "attach", str(run.root), role]
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs
    ) as shell:
        os.close(theirs)
        os.write(ours, text.encode())
        shown, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline and not shown.endswith(END_OF_TERMINAL):
            if select.select([ours], [], [], 0.5)[0]:
                shown += _read(ours)
        shell.kill()
    os.close(ours)
    return shown.decode(errors="replace")


def said_to_be(folder, job, state):
    """What `explain` says, once it says `state`."""
    said = prorl(folder, "explain", job, check=True).stdout
    return said if f"job {job} is {state}" in said else ""


END_OF_TERMINAL = b"<end>"


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # its last process has ended
        return END_OF_TERMINAL


def test_two_runs_of_one_user_train_side_by_side_whatever_their_names_and_the_user_s_shell(
    cluster, tmp_path, monkeypatch
):
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    recipe = write_recipe(tmp_path, HETJOB, steps=3)
    runs = [launch(tmp_path, recipe, name=f"./{name}") for name in NAMES]
    until(lambda: all(step(run) >= 1 for run in runs), 400, "a step of both")
    for run in runs:
        outcome = done(cluster, run)
        assert outcome is not None and outcome.state == "done" and outcome.step == 3, last_words(run)


def test_a_run_is_followed_by_its_job_s_id_on_a_cluster_without_accounts(cluster, tmp_path, monkeypatch):
    run = launch(tmp_path, write_recipe(tmp_path, HETJOB, steps=100000))
    [job] = submitted(run)
    wait_steps(run, 1, 300)
    shown = json.loads(prorl(tmp_path, "status", job, "--json", check=True).stdout)
    assert shown["state"] == "running" and shown["job"]["id"] == job and shown["job"]["state"] == "RUNNING"
    assert 0 < shown["job"]["time_left_s"] <= 1800 and set(shown["job"]["nodes"].split(",")) >= {"cpu[1-2]"}
    assert f"job {job} RUNNING" in prorl(tmp_path, "ls", check=True).stdout
    said = prorl(tmp_path, "explain", job, check=True).stdout
    assert f"job {job} is RUNNING" in said and said.count("  part  ") == 3
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's state"))
    assert json.loads(prorl(tmp_path, "status", job, "--json", check=True).stdout)["job"]["id"] == job
    assert "at gpu" in typed(tmp_path, run, "engine", "echo at $SLURMD_NODENAME; exit\n")
    cluster.run("scancel", job)
    done(cluster, run)
    ended = until(lambda: said_to_be(tmp_path, job, "CANCELLED"), 90, "a cancelled job whose nodes are clean")
    assert "prorl resume" in ended
    assert json.loads(prorl(tmp_path, "status", run.root, "--json", check=True).stdout)["state"] in ("stopped", "dead")
