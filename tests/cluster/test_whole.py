"""`recipes/ci-cluster.yaml`, as it is shipped: Apptainer, vLLM and DeepSpeed in one heterogeneous job."""

import importlib.util
import shutil
from collections import Counter

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import read_endpoints, read_outcome
from prorl_cli.spool.steps import steps
from prorl_cli.spool.trajectories import TrajectoryFollower, read_trajectory
from prorl_cli.spool.weights import read_weights
from tests.cluster.cluster_run import Traces, attempt, last_words, launch, wait
from tests.conftest import need
from tests.images import apptainer_works
from tests.quick_run import ROOT, status
from tests.run_ledger import check_ledger, leftovers
from tests.sif_images import CACHE, build

STEPS = 6

START_S = 400
"""Three imports of torch for vLLM alone, on two cores."""


@pytest.fixture(scope="module")
def parts():
    need("apptainer", apptainer_works())
    need("vllm", importlib.util.find_spec("vllm") is not None)
    need("deepspeed", importlib.util.find_spec("deepspeed") is not None and shutil.which("g++"))


def test_apptainer_vllm_and_deepspeed_train_in_one_heterogeneous_job(cluster, parts, tmp_path, monkeypatch):
    sif = build("math", definition="ci-cluster")["path"]
    monkeypatch.setenv("PRORL_CACHE", str(CACHE))
    traces = Traces()
    run = launch(tmp_path, ROOT / "recipes/ci-cluster.yaml")
    digests = weights_until_the_end(run)
    wait(run, lambda: not cluster.jobs(), 60, "the end of the job")
    assert read_outcome(run, attempt(run)).state == "done", last_words(run)
    manifests = check_ledger(run, STEPS)
    every_step_changed_the_weights(digests)
    both_rollout_nodes_did_their_share(manifests)
    every_record_names_its_engine_and_image(run, manifests, sif)
    assert "rank 1 of 2" in run.log(attempt(run), "learner-0").read_text()
    status_agrees_with_the_spool(status(tmp_path, "run"), run)
    assert not leftovers(run) and not traces.left(tmp_path)


def weights_until_the_end(run: RunDir):
    """Version → digests of its tensors, noted before retention takes it away."""
    seen = {}

    def look():
        for version in run.weight_folders():
            if version not in seen and (found := read_weights(run, version)):
                seen[version] = found[1].tensors
        return attempt(run) and read_outcome(run, attempt(run))

    wait(run, look, START_S + 60 * STEPS, "the outcome")
    return seen


def every_step_changed_the_weights(digests):
    assert sorted(digests) == list(range(STEPS + 1))
    for version in range(STEPS):
        changed = [name for name, digest in digests[version + 1].items() if digest != digests[version][name]]
        assert changed, f"step {version + 1} changed nothing"


def both_rollout_nodes_did_their_share(manifests):
    share = Counter(ref.writer for manifest in manifests for ref in manifest.records)
    assert len(share) == 2 and min(share.values()) >= 0.2 * share.total(), share


def every_record_names_its_engine_and_image(run, manifests, sif):
    records = [read_trajectory(run, ref) for manifest in manifests for ref in manifest.records]
    engines = {peer.incarnation for peer in read_endpoints(run) if peer.role == "engine"}
    assert {record.engine for record in records} <= engines
    assert {record.image for record in records} == {sif}
    assert "vllm" in run.log(attempt(run), "engine-0").read_text().lower()
    sampled = {span.version for record in records for sequence in record.sequences for span in sequence.spans}
    assert len(sampled) >= 3, sampled
    assert any(call.outcome == "ok" for record in records for call in record.tool_calls), "no tool ran in a box"


def status_agrees_with_the_spool(picture, run):
    entries = list(TrajectoryFollower(run).poll())
    assert (picture["state"], picture["step"], picture["steps"]) == ("done", STEPS, STEPS)
    assert picture["trajectories"]["finished"] == sum(entry.error_class is None for entry in entries)
    assert len(picture["reward_curve"]) == len(list(steps(run)))
