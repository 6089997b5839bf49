"""What cannot run is refused before anything is submitted: one report, exit code 2, nothing left."""

import pytest

from tests.cluster.cluster_run import HETJOB, write_recipe
from tests.quick_run import prorl

MISTAKES = {
    "unknown partition": (["cluster.rollout.partition=nowhere"], ["nowhere", "cpu"]),
    "account that may not use the partition": (
        ["cluster.rollout.partition=paid", "cluster.account=other"],
        ["paid", "other", "lab"],
    ),
    "more nodes than exist": (["cluster.rollout.nodes=3"], ["3", "2"]),
    "more GPUs than a node has": (["cluster.learner.gpus=9"], ["9"]),
    "a GPU type that nobody has": (["cluster.learner.gpu_type=H200"], ["H200", "h200"]),
    "more time than the partition allows": (
        ["cluster.rollout.partition=short", "cluster.time=24h"],
        ["short", "cluster.time"],
    ),
    "a model that is not there": (["model=/nowhere/model", "agent.renderer=hermes"], ["/nowhere/model"]),
}


def refused(folder, *arguments, run="run"):
    """The one report of a refused launch."""
    done = prorl(folder, "launch", "quick.yaml", "--run-dir", run, *arguments, timeout=120)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and not (folder / run).exists()
    return done.stderr


@pytest.fixture
def folder(cluster, tmp_path):
    write_recipe(tmp_path, HETJOB, steps=4)
    yield tmp_path
    assert not cluster.jobs()


def sets(values):
    return [word for value in values for word in ("--set", value)]


@pytest.mark.parametrize("overrides, expected", MISTAKES.values(), ids=MISTAKES)
def test_what_the_cluster_cannot_give_is_named(folder, overrides, expected):
    report = refused(folder, *sets(overrides))
    assert all(word in report for word in expected), report


def test_every_mistake_is_in_one_report(folder):
    report = refused(folder, *sets(["cluster.rollout.partition=nowhere", "cluster.learner.gpu_type=a100"]))
    assert "nowhere" in report and "a100" in report


def test_a_run_directory_that_cannot_be_made_is_refused(folder):
    assert "/dev/null" in refused(folder, run="/dev/null/run")


def test_without_slurm_the_report_says_so(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    report = refused(folder)
    assert "no `" in report and "cluster.executor=local" in report


def test_with_the_controller_down_the_report_says_so(folder, cluster, monkeypatch):
    conf = (cluster.folder / "slurm.conf").read_text()
    port = next(line for line in conf.splitlines() if line.startswith("SlurmctldPort="))
    (folder / "slurm.conf").write_text(conf.replace(port, "SlurmctldPort=9"))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    assert "does not answer" in refused(folder)


def test_a_dry_run_needs_no_slurm_and_leaves_nothing(folder, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    done = prorl(folder, "launch", "quick.yaml", "--run-dir", "run", "--dry-run", timeout=60)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH hetjob" in done.stdout and "sbatch" in done.stdout and not (folder / "run").exists()
