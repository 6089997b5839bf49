"""DeepSpeed's ranks against the plain-torch step on the same manifests, under every ZeRO stage; their deaths."""

import os
import subprocess
import sys
import time
from importlib.util import find_spec

import psutil
import pytest
from safetensors.torch import load_file

from prorl_cli.errors import UserError
from prorl_cli.learner.checkpoint import read_checkpoint
from prorl_cli.metrics import read_rows
from prorl_cli.recipe.schema import Cluster
from prorl_cli.spool.steps import read_void
from prorl_cli.spool.weights import latest_weights, verify_weights
from tests.cluster.ranks import Ranks, finish
from tests.cluster.slurm_cluster import TERMINAL
from tests.conftest import need
from tests.learner_run import Spool, make_run, make_walk, recipe, tensors, walk_to

LAST = 7
SAME = {"rel": 1e-5, "abs": 1e-7}
LOSS = {"rel": 1e-5, "abs": 5e-6}
"""Its terms are about 1 and cancel: what is left of them is no measure of their rounding."""
MEASURED = ("entropy", "kl", "clip_fraction", "grad_norm", "is_weight_mean")

MODEL = {
    "hidden_size": 384,
    "intermediate_size": 320,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
"""Its matrices are over the hundred thousand elements up to which ZeRO-3 leaves a tensor whole on every rank."""


@pytest.fixture(autouse=True)
def deepspeed():
    need("deepspeed", find_spec("deepspeed") is not None)


def planned(root, **learner):
    """Seven positions: two updates in some, a reset of the reference, one that diverges, a restore."""
    run = make_run(root, recipe(**learner), **MODEL)
    spool = Spool(run)
    for number in range(1, LAST + 1):
        if number == 4:
            spool.step(groups=5, is_cap=1e38, kl_beta=3e38)
        elif number == 6:
            spool.restore(3)
        else:
            spool.step(groups=5, updates=1 + number % 2, reset_reference=number == 3)
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same by plain torch, and its rows by position."""
    run = planned(tmp_path_factory.mktemp("plain") / "run")
    walk = make_walk(run)
    walk.begin()
    return run, {row["step"]: row for row in walk_to(walk, LAST)}


def distance(run, other, version):
    """The largest relative distance of a tensor (Frobenius) between the two runs' weights `version`."""
    ours, theirs = (load_file(one.weight(version) / "model.safetensors") for one in (run, other))
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in ours)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_two_ranks_do_what_plain_torch_does_and_a_killed_rank_changes_no_bit(zero, plain, tmp_path):
    run = planned(tmp_path / "run", backend="deepspeed", zero=zero)
    rows = finish(run, LAST)
    the_other, expected = plain
    assert [row["outcome"] for _, row in sorted(rows.items())] == ["step"] * 3 + ["void", "step", "restore", "step"]
    assert "diverged" in read_void(run, 4).reason
    for position in (1, 2, 3, 5, 7):
        assert {key: rows[position][key] for key in MEASURED} == pytest.approx(
            {key: expected[position][key] for key in MEASURED}, **SAME
        )
        assert rows[position]["loss"] == pytest.approx(expected[position]["loss"], **LOSS)
        assert rows[position]["ranks"] == len(rows[position]["authored_by_rank"]) == 2
        assert sum(rows[position]["authored_by_rank"]) == rows[position]["authored"] == expected[position]["authored"]
        assert min(rows[position]["authored_by_rank"]) > 0.4 * rows[position]["authored"]
    kept = sorted(set(run.weight_folders()) - {0})
    assert kept[-1] == LAST
    distances = [distance(run, the_other, version) for version in kept]
    print(f"zero {zero}: distances {distances}, seconds {[rows[n]['train_s'] for n in (1, 2, 3, 5, 7)]}")
    assert max(distances) < 1e-5
    assert verify_weights(run.weight(LAST)) == []

    killed = planned(tmp_path / "killed", backend="deepspeed", zero=zero)
    first = Ranks(killed)
    first.at(4)
    assert first.kill(rank=zero % 2) < 10
    finish(killed, LAST)
    assert tensors(killed, LAST) == tensors(run, LAST)
    assert sorted(os.listdir(killed.weights)) == sorted(os.listdir(run.weights)), "no lineage: every replay was equal"
    assert read_checkpoint(killed.checkpoint(LAST)) == read_checkpoint(run.checkpoint(LAST))


@pytest.mark.parametrize("rank", [0, 1])
def test_idle_ranks_die_together(rank, tmp_path):
    run = make_run(tmp_path / "run", recipe(backend="deepspeed", zero=2))
    Spool(run).step()
    ranks = Ranks(run)
    ranks.idle(1)
    assert ranks.kill(rank) < 10
    other = 1 - rank
    assert f"rank {rank} of the learner is gone" in ranks.log.read_text(), f"rank {other} says why it ends"


def test_a_stop_within_a_long_step_is_agreed_on_and_leaves_a_checkpoint(tmp_path):
    run = make_run(tmp_path / "run", recipe(backend="deepspeed", zero=3))
    spool = Spool(run)
    spool.step()
    spool.step(groups=800)
    ranks = Ranks(run)
    ranks.at(1)
    started = time.monotonic()
    assert ranks.stop(within=60) == [0, 0]
    assert time.monotonic() - started < 30
    assert latest_weights(run) == 1
    assert run.checkpoint_steps() == [1]
    assert "was abandoned" in ranks.log.read_text()


def test_another_number_of_ranks_is_refused_in_words_and_spoils_nothing(tmp_path):
    run = make_run(tmp_path / "run", recipe(backend="deepspeed", zero=1))
    Spool(run).step()
    finish(run, 1)
    ranks = Ranks(run, count=1)
    assert ranks.join(within=120) == [2]
    assert "go on with learner.backend, learner.zero and ranks as they were" in ranks.log.read_text()
    assert run.checkpoint_steps() == [1]
    with pytest.raises(UserError, match="was not saved by"):
        make_walk(run).begin()


def test_one_rank_needs_no_launcher(tmp_path):
    run = make_run(tmp_path / "run", recipe(backend="deepspeed"))
    Spool(run).step()
    process = subprocess.Popen([sys.executable, "-m", "prorl_cli.learner", str(run.root)], stderr=subprocess.PIPE)
    end = time.monotonic() + 240
    while not list(read_rows(run, "step")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    process.terminate()
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, said
    assert next(read_rows(run, "step"))["ranks"] == 1


STEP = """\
#!/bin/bash
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --no-requeue
#SBATCH --output={log}
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --mpi=none --kill-on-bad-exit=1 --input=none --label \\
  {python} -m prorl_cli.learner {run}
"""


def test_ranks_on_two_nodes_of_a_slurm_step_find_each_other_and_end_together(cluster, tmp_path):
    on_slurm = {"cluster": Cluster(executor="slurm")}
    run = make_run(tmp_path / "run", recipe(backend="deepspeed", zero=2).model_copy(update=on_slurm))
    spool = Spool(run)
    spool.step()
    spool.step()
    log, script = tmp_path / "log", tmp_path / "job.sh"
    script.write_text(STEP.format(log=log, python=sys.executable, run=run.root))
    job = cluster.submit(script)
    end = time.monotonic() + 300
    while latest_weights(run) < 2:
        assert time.monotonic() < end and cluster.state(job) in ("PENDING", "RUNNING"), log.read_text()
        time.sleep(0.2)
    assert {row["ranks"] for row in read_rows(run, "step")} == {2}
    assert [path.name for path in run.job(1).glob("ranks-*")] == [f"ranks-{job}.0.json"]
    follower = next(one for one in learners(run) if one.environ()["SLURM_PROCID"] == "1")
    follower.kill()
    assert cluster.wait(job, TERMINAL, seconds=30) == "FAILED"
    assert not learners(run)


def learners(run):
    """Its processes, wherever they came from."""
    wanted = ["prorl_cli.learner", str(run.root)]
    return [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-2:] == wanted]
