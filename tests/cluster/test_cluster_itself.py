"""The test cluster is what the other tests take it for."""

import os

import psutil

from tests.cluster.configuration import NODES
from tests.cluster.slurm_cluster import TERMINAL, SlurmCluster

HETJOB = """\
#!/bin/bash
#SBATCH --partition=cpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=1
#SBATCH --output={out}/batch.log
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=1 --gres=gpu:1
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --gres=gpu:h200:2
for shape in "0 2 2" "1 1 1" "2 1 2"; do
  read -r group nodes tasks <<< "$shape"
  srun --het-group=$group -N$nodes -n$tasks -c1 --mpi=none --input=none --label bash -c \\
    'echo "$SLURMD_NODENAME $SLURM_PROCID gpus=${{CUDA_VISIBLE_DEVICES:-}} $(id -un)"' > {out}/$group.log &
done
wait
"""

SLEEPER = """\
#!/bin/bash
#SBATCH --partition=cpu --nodes=1 --requeue --open-mode=append --output={out}/sleeper.log
#SBATCH --nodelist=cpu1
echo "attempt ${{SLURM_RESTART_COUNT:-0}}"
[ -n "${{SLURM_RESTART_COUNT:-}}" ] || sleep 600
"""


def script(folder, text):
    path = folder / "job.sh"
    path.write_text(text.format(out=folder))
    return path


def lines(path):
    return sorted(line.split(": ", 1)[1] for line in path.read_text().splitlines())


def test_a_heterogeneous_job_of_three_components_runs_side_by_side_as_its_user(cluster, tmp_path):
    job = cluster.submit(script(tmp_path, HETJOB))
    assert cluster.wait(job, TERMINAL) == "COMPLETED", (tmp_path / "batch.log").read_text()
    me = psutil.Process().username()
    assert lines(tmp_path / "0.log") == [f"cpu1 0 gpus= {me}", f"cpu2 1 gpus= {me}"]
    assert len(lines(tmp_path / "1.log")) == 1
    assert " gpus=0 " in lines(tmp_path / "1.log")[0]
    learner = lines(tmp_path / "2.log")
    assert [line.split()[1:] for line in learner] == [["0", "gpus=0,1", me], ["1", "gpus=0,1", me]]


def test_a_job_on_a_node_that_goes_down_is_requeued_within_seconds(cluster, tmp_path):
    job = cluster.submit(script(tmp_path, SLEEPER))
    cluster.wait(job, ["RUNNING"])
    cluster.down("cpu1")
    cluster.wait(job, ["PENDING"])
    cluster.up("cpu1")
    assert cluster.wait(job, TERMINAL, 90) == "COMPLETED"
    assert (tmp_path / "sleeper.log").read_text().splitlines()[-1] == "attempt 1"


def test_a_node_without_power_takes_its_processes_with_it_and_comes_back(cluster, tmp_path):
    job = cluster.submit(script(tmp_path, SLEEPER))
    cluster.wait(job, ["RUNNING"])
    mark = str(tmp_path)
    cluster.kill_node("cpu1")
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]
    cluster.run("scancel", job)
    cluster.start_node("cpu1")
    assert cluster.node_state("cpu1") == "idle"


def test_nothing_of_a_cluster_outlives_it(tmp_path):
    started = SlurmCluster()
    job = started.submit(script(tmp_path, SLEEPER))
    started.wait(job, ["RUNNING"])
    assert started.run("sinfo", "-h", "-N", "-p", "cpu,gpu", "-o", "%N").split() == list(NODES)
    started.close()
    assert not started.folder.exists()
    assert not [process for process in psutil.process_iter() if belongs(process, started.conf)]


def belongs(process, conf):
    try:
        return process.pid != os.getpid() and (conf in process.cmdline() or process.environ().get("SLURM_CONF") == conf)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
