"""Which node is which, and the exact command of every step."""

import json
import signal

import pytest

from prorl_cli.errors import ProrlError
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.slurm import plan_processes
from prorl_cli.slurm.child import how_it_ended
from prorl_cli.slurm.shape import groups
from prorl_cli.slurm.step import role_code, srun_command, step_environment, steps_named
from prorl_cli.slurm.topology import each_node, read_topology, topology, write_topology

RECIPE = {
    "name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny"},
    "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
}  # fmt: skip

NODES = {"rollout": {"nodes": 2}, "engine": {"nodes": 2, "gpus": 1}, "learner": {"nodes": 2, "gpus": 4}}


def recipe(topology):
    return Recipe.model_validate_json(
        json.dumps(
            {
                **RECIPE,
                "learner": {"backend": "deepspeed"},
                "cluster": {"executor": "slurm", "topology": topology, **NODES},
            }
        )
    )


HETJOB = {
    "SLURM_JOB_ID": "70", "SLURM_HET_SIZE": "3",
    "SLURM_JOB_ID_HET_GROUP_0": "70", "SLURM_JOB_ID_HET_GROUP_1": "71", "SLURM_JOB_ID_HET_GROUP_2": "72",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu[1-2]", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "8(x2)",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu[07,12]", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "16,32",
    "SLURM_JOB_NODELIST_HET_GROUP_2": "big1,big3", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_2": "64(x2)",
    "SLURM_JOB_NODELIST": "cpu[1-2]",
}  # fmt: skip

SINGLE = {"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-6]", "SLURM_JOB_CPUS_PER_NODE": "4(x6)"}


def commands(topology_name, environment):
    wanted = recipe(topology_name)
    nodes = topology(groups(wanted), environment)
    roles = plan_processes(wanted, has_weights=True).roles
    return {role.name: srun_command(nodes, role, ["run", role.room]) for role in roles}


def test_every_step_of_a_heterogeneous_job_says_all_of_its_shape():
    found = commands("hetjob", HETJOB)
    common = ["--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=1", "--input=none", "--export=ALL"]
    assert found["engine-1"] == [
        "srun", "--het-group=1", "--job-name=engine-1", "--nodes=1", "--nodelist=gpu12", "--ntasks=1",
        "--ntasks-per-node=1", "--cpus-per-task=32", "--gres=gpu:1", *common, "run", "engine",
    ]  # fmt: skip
    assert found["rollout-1"][1:8] == [
        "--het-group=0", "--job-name=rollout-1", "--nodes=1", "--nodelist=cpu2", "--ntasks=1", "--ntasks-per-node=1",
        "--cpus-per-task=8",
    ]  # fmt: skip
    assert "--gres=none" in found["rollout-1"] and "--nodelist=cpu1" in found["coordinator-0"]


def test_the_learner_is_one_step_with_a_rank_for_each_gpu():
    found = commands("hetjob", HETJOB)["learner-0"]
    assert {"--het-group=2", "--nodes=2", "--nodelist=big1,big3", "--ntasks=8", "--ntasks-per-node=4",
            "--cpus-per-task=16", "--gres=gpu:4", "--label"} <= set(found)  # fmt: skip


def test_a_single_job_gives_its_nodes_in_the_order_rollout_engine_learner():
    found = commands("single", SINGLE)
    where = {name: next(word for word in command if word.startswith("--nodelist")) for name, command in found.items()}
    assert where["rollout-0"] == where["coordinator-0"] == "--nodelist=n1" and where["rollout-1"] == "--nodelist=n2"
    assert [where[f"engine-{n}"] for n in (0, 1)] == ["--nodelist=n3", "--nodelist=n4"]
    assert where["learner-0"] == "--nodelist=n5,n6"
    assert not [word for command in found.values() for word in command if "het-group" in word]


def test_satellites_leave_the_coordinator_a_component_of_its_own():
    control = {**HETJOB, "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu1", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "8"}
    found = commands("satellites", control)
    assert "--nodelist=cpu1" in found["coordinator-0"] and not [name for name in found if name.startswith("rollout")]


def test_a_job_of_another_shape_than_the_recipe_is_refused_in_words():
    with pytest.raises(ProrlError, match="1 components, the recipe asks for 3"):
        topology(groups(recipe("hetjob")), SINGLE)
    with pytest.raises(ProrlError, match="1 nodes for rollout, the recipe asks for 2"):
        topology(groups(recipe("hetjob")), {**HETJOB, "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu1"})


def test_the_topology_is_read_back_as_it_was_written(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create()
    run.job(1).mkdir()
    assert read_topology(run, 1) is None
    nodes = topology(groups(recipe("hetjob")), HETJOB)
    write_topology(run, 1, nodes)
    assert read_topology(run, 1) == nodes
    assert nodes.job_ids == (70, 71, 72) and nodes.of("learner").nodes == ("big1", "big3")
    with pytest.raises(ProrlError, match="no nodes for control"):
        nodes.of("control")


def test_numbers_of_nodes_as_slurm_shortens_them():
    assert each_node("64(x2),8") == [64, 64, 8] and each_node("4") == [4]
    with pytest.raises(ProrlError):
        each_node("64(x2")


def test_a_step_gets_the_job_but_no_option_of_the_batch_step():
    batch = {
        "PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "70", "SLURM_HET_SIZE": "3",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "gpu1", "SLURM_RESTART_COUNT": "1",
    }  # fmt: skip
    options = {
        "SLURM_MEM_PER_NODE": "4000", "SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS_PER_NODE_HET_GROUP_2": "1",
        "SLURM_JOB_ID_PACK_GROUP_1": "71", "SLURM_CPU_BIND": "quiet", "SLURM_EXPORT_ENV": "NONE",
        "CUDA_VISIBLE_DEVICES": "0", "SRUN_CPUS_PER_TASK": "4", "SLURMD_NODENAME": "cpu1", "PMI_RANK": "0",
    }  # fmt: skip
    assert step_environment({**batch, **options}) == batch


def test_the_first_rank_that_ended_tells_why_a_step_ended():
    killed = "srun: error: gpu1: task 0: Killed\nsrun: Force Terminated StepId=5.2\n"
    assert how_it_ended(role_code(137, killed)) == "killed by SIGKILL"
    masked = "0: Traceback\nsrun: error: gpu1: task 0: Exited with exit code 2\nsrun: error: gpu1: task 1: Terminated\n"
    assert role_code(128 + signal.SIGTERM, masked) == 2
    assert role_code(143, "srun: error: n1: tasks 0-3: Exited with exit code 1\n") == 1


def test_steps_are_found_by_their_role_s_name():
    listing = "70.0|router-0\n70.batch|batch\n71.0|engine-1\n71.1|engine-10\n"
    assert steps_named(["engine-1", "router-0"], listing) == ["70.0", "71.0"]
