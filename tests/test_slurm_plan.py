"""The plan and the shape of a job: every process has a node, every node is asked for, and ambiguities are refused."""

import json

import pytest

from prorl_cli.recipe import Recipe
from prorl_cli.slurm import shape
from prorl_cli.slurm.plan import plan_processes, satellite_plan

BASE = {
    "name": "t", "model": "builtin:tiny", "agent": {"renderer": "tiny"},
    "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
}  # fmt: skip


def recipe(cluster, **others):
    cluster = {"executor": "slurm", **cluster}
    learner = {"backend": "deepspeed", **others.pop("learner", {})}
    return Recipe.model_validate_json(json.dumps({**BASE, "cluster": cluster, "learner": learner, **others}))


PARTS = {"rollout": {"nodes": 2}, "engine": {"nodes": 2, "gpus": 4}, "learner": {"nodes": 2, "gpus": 8}}


@pytest.mark.parametrize("topology", ["hetjob", "satellites", "single"])
def test_every_process_has_nodes_and_every_node_of_the_job_has_a_process(topology):
    asked = recipe({"topology": topology, **PARTS})
    held = {name: nodes for group in shape.groups(asked) for name, nodes in group.holds}
    used = {
        (role.component, node)
        for role in plan_processes(asked, has_weights=True).roles
        for node in range(role.node, role.node + role.nodes)
    }
    assert used == {(name, node) for name, nodes in held.items() for node in range(nodes)}
    assert all(group.nodes == sum(nodes for _, nodes in group.holds) for group in shape.groups(asked))


def test_the_learner_is_one_process_of_a_rank_a_gpu():
    learner = plan_processes(recipe(PARTS), has_weights=True).roles[-1]
    assert (learner.name, learner.nodes, learner.tasks, learner.gpus) == ("learner-0", 2, 16, 8)
    cpu_only = plan_processes(recipe({"learner": {"nodes": 2}}), has_weights=True).roles[-1]
    assert (cpu_only.tasks, cpu_only.gpus) == (2, 0)
    alone = plan_processes(recipe({"learner": {"gpus": 8}}, learner={"backend": "torch"}), has_weights=True).roles[-1]
    assert (alone.nodes, alone.tasks) == (1, 1)


def engines(cluster, **others):
    roles = plan_processes(recipe(cluster, **others), has_weights=True).roles
    return [(role.name, role.node, role.gpus, role.devices) for role in roles if role.room == "engine"]


def test_a_node_has_as_many_vllm_servers_as_its_gpus_hold_each_on_its_own():
    vllm, asked = {"kind": "vllm", "tensor_parallel": 2}, {"nodes": 2, "gpus": 4}
    shares = [(0, (0, 1)), (0, (2, 3)), (1, (0, 1)), (1, (2, 3))]
    assert engines({"engine": asked}, engine=vllm) == [
        (f"engine-{number}", node, 4, devices) for number, (node, devices) in enumerate(shares)
    ]
    local = engines({"executor": "local", "engine": {"nodes": 2, "gpus": 1}}, engine={"kind": "vllm"})
    assert [devices for *_, devices in local] == [(0,), (1,)]


def test_an_engine_without_gpus_of_its_own_is_one_a_node():
    assert engines({"engine": {"nodes": 2}}, engine={"kind": "vllm"}) == [
        ("engine-0", 0, 0, ()),
        ("engine-1", 1, 0, ()),
    ]
    assert engines({"engine": {"gpus": 4}}) == [("engine-0", 0, 4, ())]


def test_what_would_idle_is_refused():
    asked = recipe({"learner": {"nodes": 2}}, learner={"backend": "torch"})
    assert any("needs `learner.backend: deepspeed`" in mistake for mistake in shape.mistakes(asked))
    asked = recipe({"engine": {"gpus": 8}}, engine={"kind": "vllm", "tensor_parallel": 3})
    assert any("some would idle" in mistake for mistake in shape.mistakes(asked))


def test_coordinator_router_and_preparation_share_the_first_node():
    for topology, home in (("hetjob", "rollout"), ("single", "rollout"), ("satellites", "control")):
        plan = plan_processes(recipe({"topology": topology, **PARTS}), has_weights=False)
        assert {(p.component, p.node) for p in (plan.prepare, *plan.roles[:2])} == {(home, 0)}


def test_satellites_are_no_part_of_the_job_and_run_one_worker_each():
    asked = recipe({"topology": "satellites", **PARTS})
    assert "rollout" not in [role.room for role in plan_processes(asked, has_weights=True).roles]
    assert [group.name for group in shape.groups(asked)] == ["control", "engine", "learner"]
    (worker,) = satellite_plan(asked, 1).roles
    assert (worker.name, worker.component, worker.node) == ("rollout-1", "rollout", 0)
    assert shape.satellite_group(asked).nodes == 1


def test_one_machine_has_no_satellites():
    asked = recipe({"executor": "local", "topology": "satellites", **PARTS})
    assert [role.name for role in plan_processes(asked, has_weights=True).roles].count("rollout-1") == 1


def test_an_evaluation_asks_for_no_learner_nodes():
    asked = recipe(PARTS, learner={"steps": 0})
    assert [group.name for group in shape.groups(asked)] == ["rollout", "engine"]


def test_the_plain_job_asks_for_all_nodes_as_the_learner_wants_them():
    (group,) = shape.groups(recipe({"topology": "single", **PARTS}))
    assert (group.nodes, group.component.gpus) == (6, 8)
    assert group.holds == (("rollout", 2), ("engine", 2), ("learner", 2))


@pytest.mark.parametrize(
    "cluster, said",
    [
        ({"rollout": {"account": "a"}}, "cluster.engine.account is not set but cluster.rollout.account is"),
        ({"engine": {"reservation": "r"}}, "cluster.learner.reservation is not set but cluster.engine.reservation is"),
        ({"rollout": {"memory": "1GiB"}, "engine": {"memory": "1GiB"}}, "cluster.learner.memory is not set"),
        ({"time": "4m"}, "leaves nothing for training"),
        ({"drain": "20h"}, "cluster.drain must be at most"),
        ({"engine": {"constraint": "a\nb"}}, "cluster.engine.constraint holds a line break"),
        ({"topology": "single", "engine": {"gpus": 2}}, "cluster.engine.gpus is more than cluster.learner.gpus"),
        ({"licenses": "HetJob"}, "cluster.licenses holds the word hetjob"),
        ({"setup": "module load a\n#SBATCH -p x\n"}, "cluster.setup holds #SBATCH lines"),
        ({"learner": {"extra": ["-p gpu"]}}, "cluster.learner.extra[0] is not a long option"),
    ],
)
def test_what_slurm_would_understand_otherwise_is_refused(cluster, said):
    found = shape.mistakes(recipe(cluster))
    assert any(said in mistake for mistake in found), found


def test_what_every_component_says_for_itself_is_no_mistake():
    asked = recipe({"account": "a", "time": "1h", "rollout": {"account": "b"}, "learner": {"extra": ["--switches=1"]}})
    assert shape.mistakes(asked) == []
    assert shape.mistakes(recipe({"learner": {"account": "late"}})) == []
