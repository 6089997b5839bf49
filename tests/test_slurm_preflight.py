"""Before sbatch: everything that a cluster would refuse, never start or misunderstand is found at once, by key."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_cli.recipe import Recipe
from prorl_cli.slurm.commands import ControllerDown
from prorl_cli.slurm.facts import Association, Facts, Node, Partition, associations_of, gpus_of, nodes_of
from prorl_cli.slurm.places import quota_problems
from prorl_cli.slurm.preflight import check, inspect

GIB = 2**30


def recipe(**cluster):
    given = {
        "name": "asked", "model": "builtin:tiny", "agent": {"renderer": "tiny"},
        "tasks": [{"domain": "math", "source": "reasoning_gym:chain_sum"}],
        "cluster": {"executor": "slurm", "time": "1h", "rollout": {"partition": "cpu"}, "engine": {"partition": "gpu", "gpus": 1},
                    "learner": {"partition": "gpu", "gpus": 2}, **cluster},
    }  # fmt: skip
    return Recipe.model_validate_json(json.dumps(given))


def nodes(partition, count, gpus=(), host="elsewhere", cpus=64, memory=256 * GIB, features=frozenset()):
    return tuple(
        Node(
            name=f"{partition}{i}",
            host=f"{host}{i}",
            partition=partition,
            cpus=cpus,
            memory=memory,
            gpus=gpus,
            features=features,
        )
        for i in range(count)
    )


CLUSTER = Facts(
    partitions=(
        Partition(name="cpu", default=True),
        Partition(name="gpu", max_time_s=7200.0, max_nodes=8),
    ),
    nodes=(*nodes("cpu", 4), *nodes("gpu", 4, gpus=(("h100", 4),), features=frozenset(["ib", "h100"]))),
    settings={"SchedulerType": "sched/backfill"},
)


def only(texts, *parts):
    assert len(texts) == 1, texts
    for part in parts:
        assert part in texts[0]


def test_a_recipe_that_fits_has_no_finding():
    assert check(recipe(time="1h"), CLUSTER) == []


def test_an_unknown_partition_is_named_with_its_key_and_the_nearest_one():
    only(
        check(recipe(engine={"partition": "GPU", "gpus": 1}), CLUSTER),
        "cluster.engine.partition",
        "'GPU'",
        "did you mean 'gpu'",
    )


def test_a_cluster_without_a_default_partition_wants_one_named():
    bare = replace(CLUSTER, partitions=tuple(replace(p, default=False) for p in CLUSTER.partitions))
    only(check(recipe(rollout={}), bare), "cluster.rollout.partition", "no default partition", "cpu, gpu")


def test_more_nodes_than_exist():
    only(check(recipe(rollout={"partition": "cpu", "nodes": 9}), CLUSTER), "cluster.rollout.nodes", "9 nodes", "only 4")


def test_a_job_that_may_start_in_either_partition_needs_one_that_holds_it_whole():
    assert check(recipe(rollout={"partition": "cpu,gpu", "nodes": 4}), CLUSTER) == []
    only(check(recipe(rollout={"partition": "cpu,gpu", "nodes": 5}), CLUSTER), "cluster.rollout.nodes", "only 4")


def test_components_count_nodes_of_their_own_even_where_the_cores_would_do():
    two = replace(CLUSTER, nodes=(*nodes("cpu", 1), *nodes("gpu", 1, gpus=(("h100", 4),), cpus=128)))
    only(check(recipe(), two), "cluster.engine.nodes (1)", "cluster.learner.nodes (1)", "only 1 fit", "single")


def test_three_components_on_two_nodes_are_found_though_each_pair_fits():
    shared = replace(CLUSTER, nodes=nodes("cpu", 2, gpus=(("h100", 4),)))
    asked = recipe(rollout={}, engine={"gpus": 1}, learner={"gpus": 1})
    only(check(asked, shared), "that is 3", "only 2 fit")


def test_the_type_of_a_gpu_is_case_sensitive():
    asked = recipe(engine={"partition": "gpu", "gpus": 1, "gpu_type": "H100"})
    only(check(asked, CLUSTER), "cluster.engine.gpu_type", "'H100'", "did you mean 'h100'")
    assert check(recipe(engine={"partition": "gpu", "gpus": 1, "gpu_type": "h100"}), CLUSTER) == []


def test_more_gpus_cores_or_memory_than_any_node_has():
    big = {"partition": "gpu", "gpus": 8, "cpus": 65, "memory": "512GiB"}
    found = check(recipe(learner=big), CLUSTER)
    assert [text.split(":")[0] for text in found] == [
        "cluster.learner.gpus",
        "cluster.learner.cpus",
        "cluster.learner.memory",
    ]
    only(check(recipe(rollout={"partition": "cpu", "gpus": 1}), CLUSTER), "cluster.rollout.gpus", "no node")


def test_a_time_over_the_partitions_maximum_which_slurm_would_queue_for_ever():
    found = check(recipe(time="24h"), CLUSTER)
    assert len(found) == 2 and all(text.startswith("cluster.time: 1d is over the 2h") for text in found)


def test_a_feature_that_no_node_has():
    asked = recipe(engine={"partition": "gpu", "gpus": 1, "constraint": "ib&a100"})
    only(check(asked, CLUSTER), "cluster.engine.constraint", "'a100'")
    assert check(recipe(engine={"partition": "gpu", "gpus": 1, "constraint": "ib&h100"}), CLUSTER) == []


def test_an_account_and_a_qos_that_the_user_does_not_have():
    known = replace(CLUSTER, associations=(Association(account="lab", qos=frozenset(["normal"])),))
    found = check(recipe(account="lap", qos="fast"), known)
    assert any("cluster.account" in text and "did you mean 'lab'" in text for text in found)
    assert any("cluster.qos" in text and "'fast'" in text for text in found)
    assert check(recipe(account="lab", qos="normal"), known) == []
    assert check(recipe(account="lap"), CLUSTER) == [], "where nobody keeps accounts there is nothing to say"


def test_a_time_that_is_not_said_must_be_the_same_everywhere_and_leave_something():
    only(check(recipe(time="0s"), CLUSTER), "the partitions would end the components apart", "cluster.engine 2h")
    for limit, said in ((7200.0, []), (120.0, ["2m of a partition leave nothing for training"])):
        same = tuple(replace(one, max_time_s=7200.0, default_time_s=limit) for one in CLUSTER.partitions)
        found = check(recipe(time="0s"), replace(CLUSTER, partitions=same))
        assert len(found) == len(said) and all(words in text for words, text in zip(said, found, strict=True))


def test_a_partition_that_admits_only_other_accounts():
    closed = replace(
        CLUSTER, partitions=(replace(CLUSTER.partitions[0], accounts=frozenset(["staff"])), CLUSTER.partitions[1])
    )
    only(check(recipe(account="lab"), closed), "cluster.rollout", "'lab'", "staff")


def test_a_heterogeneous_job_needs_the_backfill_scheduler():
    builtin = replace(CLUSTER, settings={"SchedulerType": "sched/builtin"})
    only(check(recipe(), builtin), "cluster.topology", "single")
    same = {"partition": "gpu", "gpus": 2}
    assert check(recipe(topology="single", rollout=same, engine=same, learner=same), builtin) == []


def test_a_closed_partition():
    down = replace(CLUSTER, partitions=(CLUSTER.partitions[0], replace(CLUSTER.partitions[1], state="DOWN")))
    found = check(recipe(), down)
    assert len(found) == 2 and all("gpu is DOWN" in text for text in found)


def test_all_findings_come_at_once_and_nothing_is_left_behind(tmp_path):
    asked = recipe(rollout={"partition": "cpu", "nodes": 9}, engine={"partition": "nope", "gpus": 1})
    found = inspect(asked, tmp_path / "run", facts=lambda: CLUSTER)
    for part in ("cluster.rollout.nodes", "cluster.engine.partition", "on this machine only"):
        assert any(part in text for text in found.errors), found.errors
    assert not (tmp_path / "run").exists()


def test_a_silent_controller_does_not_hide_what_is_wrong_here(tmp_path):
    def silent():
        raise ControllerDown("the controller does not answer")

    found = inspect(recipe(), Path("/proc/run"), facts=silent)
    assert "does not answer" in found.errors[0] and "on this machine only" in found.errors[-1]


def test_an_image_that_is_missing_and_data_on_this_machine_only_are_found(tmp_path):
    (tmp_path / "data.jsonl").write_text("{}\n")
    asked = recipe(engine={"partition": "gpu", "gpus": 1, "image": str(tmp_path / "no.sif")})
    task = asked.tasks[0].model_copy(update={"source": str(tmp_path / "data.jsonl")})
    found = inspect(asked.model_copy(update={"tasks": (task,)}), tmp_path / "run", facts=lambda: CLUSTER)
    assert any("cluster.engine.image" in text and "cannot be read" in text for text in found.errors)
    assert any("tasks.0.source" in text and "on this machine only" in text for text in found.errors)


def test_what_every_node_of_this_one_machine_sees_is_no_finding(tmp_path):
    here = replace(CLUSTER, nodes=tuple(replace(node, host=socket.gethostname()) for node in CLUSTER.nodes))
    found = inspect(recipe(), tmp_path / "run", facts=lambda: here, rehearsal=lambda *_: "")
    assert found.errors == found.doubts == ()


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("sbatch: allocation failure: Invalid license specification", True),
        ("sbatch: allocation failure: Requested node configuration is not available", False),
    ],
)
def test_what_slurm_itself_would_refuse_ends_the_launch_unless_nodes_that_come_back_mend_it(tmp_path, said, refused):
    here = replace(CLUSTER, nodes=tuple(replace(node, host=socket.gethostname()) for node in CLUSTER.nodes))
    found = inspect(recipe(), tmp_path / "run", facts=lambda: here, rehearsal=lambda *_: said)
    assert (found.errors if refused else found.doubts) == (said,)
    assert not (found.doubts if refused else found.errors)


def test_gres_as_sinfo_spells_it():
    assert gpus_of("gpu:h100:4(S:0-1),gpu:2,shard:h100:8,gpu:a100:1(S:0,1)") == (("h100", 4), ("", 2), ("a100", 1))
    assert gpus_of("gpu") == (("", 1),) and gpus_of("(null)") == () and gpus_of("gpu:3g.40gb:2") == (("3g.40gb", 2),)


def test_nodes_as_sinfo_prints_them():
    (node,) = nodes_of("gpu1|host1|gpu|64|515000|gpu:h100:4|mixed*|a,b\nnoise\n")
    assert (node.cpus, node.memory, node.state, node.features) == (64, 515000 * 2**20, "mixed", frozenset("ab"))
    assert node.gpu_count() == node.gpu_count("h100") == 4 and node.gpu_count("H100") == 0


def test_associations_as_sacctmgr_prints_them():
    assert list(associations_of("lab||normal,high\nother|gpu|\n")) == [
        Association(account="lab", qos=frozenset(["normal", "high"])),
        Association(account="other", partition="gpu"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/scratch 900 0 0 - 20 0 0 -", []),
        ("/scratch 99999000* 0 100000000 - 20 0 0 -", ["disk"]),
        ("/scratch 900 0 100000000 - 9999 9000 10000 -", ["file"]),
        ("Disk quotas for usr are not available", []),
        ("", []),
    ],
)
def test_a_quota_that_is_used_up(text, expected):
    found = list(quota_problems(text, Path("/scratch")))
    assert len(found) == len(expected) and all(word in text for word, text in zip(expected, found, strict=True))
