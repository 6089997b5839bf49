"""What `doctor` and preflight learn from the real Slurm: its parts, its limits, and a folder seen by two of its nodes."""

import json

from prorl_cli.slurm.facts import gather
from prorl_cli.slurm.state import job_state, with_estimate
from tests.cluster.configuration import GPU_TYPE, NODES
from tests.quick_run import prorl


def test_the_facts_of_a_cluster_are_read_whole(cluster):
    facts = gather()
    assert {node.name for node in facts.nodes} == set(NODES) and facts.partition("").name == "cpu"
    gpu = next(node for node in facts.nodes if node.name == "gpu1" and node.partition == "gpu")
    assert (gpu.gpus, gpu.cpus, gpu.memory) == (((GPU_TYPE, 2),), 8, 16000 * 2**20)
    assert "fast" in gpu.features
    assert facts.partition("short").max_time_s == 180.0 and facts.partition("cpu").max_time_s is None
    assert facts.partition("paid").accounts == {"lab"}
    assert facts.settings["SchedulerType"] == "sched/backfill" and facts.associations is None


def test_doctor_measures_a_folder_between_two_nodes_and_leaves_nothing(cluster, tmp_path):
    folder = tmp_path / "shared, 'with' signs"
    folder.mkdir()
    done = prorl(tmp_path, "doctor", "--json", "--shared", folder, timeout=200)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["slurm"]["verdict"] == "ok" and "2 of 2 nodes up" in found["partition gpu"]["value"]
    assert found["heterogeneous jobs"]["value"] == "bf_hetjob_immediate"
    for name in ("write → visible", "new name → listed", "exclusive create", "exclusive link", "publish with fsync"):
        assert found[name]["verdict"] == "ok", found[name]
    assert not list(folder.iterdir())


def test_a_job_that_asks_for_too_long_waits_for_ever_and_the_reason_is_said(cluster, tmp_path):
    script = tmp_path / "long.sh"
    script.write_text("#!/bin/bash\n#SBATCH -p short -t 60\nsleep 600\n")
    job = cluster.submit(script)
    state = with_estimate(job_state(job))
    assert (state.state, state.source, state.start_estimate) == ("PENDING", "squeue", None)
    assert state.reason in ("PartitionTimeLimit", "PartitionConfig")
    assert "never start" in prorl(tmp_path, "explain", job, check=True).stdout


def test_a_job_that_slurm_has_forgotten_is_unknown(cluster):
    state = job_state(4_000_000)
    assert (state.state, state.source, state.over) == ("UNKNOWN", "nobody", False)
