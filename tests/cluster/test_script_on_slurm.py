"""Rendered scripts as the real Slurm takes them: whole shapes, hostile names and shells, requeues, lost answers."""

import resource
import subprocess

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.slurm import script
from prorl_cli.slurm.submit import find_job, new_token, submit
from tests import golden_scripts
from tests.cluster.configuration import GPU_TYPE
from tests.cluster.slurm_cluster import TERMINAL
from tests.quick_run import until
from tests.test_slurm_plan import recipe
from tests.test_slurm_script import HOSTILE

PARTS = {
    "rollout": {"partition": "cpu", "nodes": 2}, "engine": {"partition": "gpu", "gpus": 1},
    "learner": {"partition": "gpu", "gpus": 2, "gpu_type": GPU_TYPE},
}  # fmt: skip


@pytest.fixture
def batch(tmp_path):
    """A recipe whose batch script runs `body` in the place of prorl's supervisor."""

    def asked(body, **cluster):
        folder = tmp_path / f"templates-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "job.sh").write_text(f"#!/bin/bash\n@{{directives}}\n{body}\n")
        return recipe({"templates": str(folder), **PARTS, **cluster})

    return asked


def new_run(folder):
    run = RunDir(folder)
    run.create()
    return run


def shrunk(asked):
    """The same recipe in the size of the test cluster, with what its nodes have (two with GPUs: a plain job of such
    nodes has none left for a learner)."""
    one = len({getattr(asked.cluster, name).partition for name in ("rollout", "engine", "learner")}) == 1
    parts = {}
    for name in ("control", "rollout", "engine", "learner"):
        part = getattr(asked.cluster, name)
        parts[name] = part.model_copy(update={
            "partition": "all" if one else "gpu" if part.gpus else "cpu", "nodes": 1, "cpus": min(part.cpus, 2),
            "memory": min(part.memory, 2**30), "gpus": min(part.gpus, 1), "gpu_type": GPU_TYPE if part.gpu_type else "",
            "constraint": ("fast" if part.gpus else "plain") if part.constraint else "", "qos": "", "reservation": "",
        })  # fmt: skip
    parts |= {"qos": "", "licenses": ""}
    learner = asked.learner.model_copy(update={"steps": 0 if asked.cluster.topology == "single" else 1})
    return asked.model_copy(update={"cluster": asked.cluster.model_copy(update=parts), "learner": learner})


@pytest.mark.parametrize("shape", golden_scripts.SHAPES)
def test_slurm_accepts_every_shape(cluster, tmp_path, shape):
    asked = shrunk(golden_scripts.recipe(shape))
    for satellite in (None, 0) if asked.cluster.topology == "satellites" else (None,):
        (tmp_path / "job.sh").write_text(script.render(asked, tmp_path, "token", satellite=satellite))
        command = ["sbatch", "--test-only", "job.sh"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert said.returncode == 0 and "to start at" in said.stderr, said.stderr


def test_a_run_directory_may_have_any_name(cluster, tmp_path, batch):
    asked = batch('pwd; printf "%s" @{run_dir} >"$SLURM_SUBMIT_DIR/seen"', learner={"partition": "gpu"})
    runs = [new_run(tmp_path / "runs" / name) for name in HOSTILE]
    jobs = [submit(run, asked, "token") for run in runs]
    for run, job in zip(runs, jobs, strict=True):
        assert cluster.wait(job, TERMINAL) == "COMPLETED", run.root
        assert run.job_log("token", job).read_text() == f"{run.submission('token')}\n"
        assert (run.submission("token") / "seen").read_text() == str(run.root)


def test_every_component_is_where_the_recipe_says_whatever_the_users_shell_says(cluster, tmp_path, batch, monkeypatch):
    for name, value in (
        ("SBATCH_PARTITION", "gpu"), ("SBATCH_OUTPUT", "/nowhere/x"), ("SLURM_HET_SIZE", "9"), ("SLURM_MEM_PER_CPU", "1"),
        ("SBATCH_TIMELIMIT", "1"), ("SQUEUE_FORMAT", "%j"), ("SLURM_CPU_BIND", "none"), ("SBATCH_EXPORT", "NONE"),
        ("TMPDIR", "/nowhere"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    run = new_run(tmp_path / "run")
    body = (
        'for k in 0 1 2; do v=SLURM_JOB_PARTITION_HET_GROUP_$k; n=SLURM_JOB_NUM_NODES_HET_GROUP_$k; echo "${!v} ${!n}"; done\n'
        'echo "$SLURM_HET_SIZE $TMPDIR $SLURM_JOB_NAME"'
    )
    job = submit(run, batch(body, time="10m"), "token")
    shown = cluster.run("scontrol", "show", "job", job)
    assert shown.count("TimeLimit=00:10:00") == 3 and "Comment=prorl:token" in shown
    assert cluster.wait(job, TERMINAL) == "COMPLETED"
    assert run.job_log("token", job).read_text().splitlines() == ["cpu 2", "gpu 1", "gpu 1", "3 /tmp t"]


def test_the_limits_of_the_login_node_stay_there(cluster, tmp_path, batch):
    run = new_run(tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        job = submit(run, batch("ulimit -n"), "token")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert cluster.wait(job, TERMINAL) == "COMPLETED"
    assert run.job_log("token", job).read_text().strip() != "200"


def test_a_second_run_of_the_script_writes_behind_the_first(cluster, tmp_path, batch):
    run = new_run(tmp_path / "run")
    body = 'echo "run ${SLURM_RESTART_COUNT:-0}"\n[ -n "${SLURM_RESTART_COUNT:-}" ] || sleep 600'
    job = submit(run, batch(body), "token")
    log = run.job_log("token", job)
    until(lambda: log.exists() and log.read_text() == "run 0\n", 60, "the first word")
    cluster.run("scontrol", "requeue", job)
    assert cluster.wait(job, TERMINAL, 90) == "COMPLETED"
    said = log.read_text().splitlines()
    assert said[0] == "run 0" and said[-1] == "run 1"


def test_a_submission_whose_answer_was_lost_is_found_again(cluster, tmp_path, batch):
    run, asked = new_run(tmp_path / "run"), batch("sleep 600")
    token, other = new_token(), new_token()
    job = submit(run, asked, token)
    run.job_record(token).unlink()
    assert find_job(token) == job and find_job(other) is None
    assert submit(run, asked, token) == job
    assert len(cluster.jobs()) == 3


def test_the_next_job_waits_for_the_end_and_a_satellite_for_the_start(cluster, tmp_path, batch):
    run, plain = new_run(tmp_path / "run"), {"topology": "single", "engine": {}, "rollout": {}}
    first = submit(run, batch("sleep 600", **plain, learner={"partition": "all"}), "a")
    beside = batch("sleep 600", topology="satellites", rollout={"partition": "gpu"})
    satellite = submit(run, beside, "b", after=first, satellite=0)
    following = submit(run, batch("true", **plain, learner={"partition": "all"}), "c", after=first)
    cluster.wait(satellite, ["RUNNING"])
    assert cluster.state(first) == "RUNNING" and cluster.state(following) == "PENDING"
    cluster.run("scancel", first)
    assert cluster.wait(following, TERMINAL) == "COMPLETED"
