"""`verify_run` reads every byte of the spool and the weights, and tells the unfinished from the damaged."""

import pytest

from prorl_cli.spool import members
from prorl_cli.spool.evals import Evaluation, publish_evaluation
from prorl_cli.spool.requests import RequestWriter
from prorl_cli.spool.steps import publish_step, publish_void
from prorl_cli.spool.trajectories import TrajectoryWriter
from prorl_cli.spool.verify import verify_run
from prorl_cli.spool.weights import publish_weights
from prorl_cli.trajectory import Drain, StepKind, StepManifest, Void
from tests.spool_world import VOCAB, new_run, trajectory

WORKER = "rollout-node-1-00000000"


def write_model(folder):
    (folder / "model.safetensors").write_bytes(b"weights")
    return {}


@pytest.fixture
def run(tmp_path):
    """A run with one of everything."""
    run = new_run(tmp_path / "run")
    members.claim_attempt(run, {})
    writer = TrajectoryWriter(run, WORKER, VOCAB)
    for group in range(3):
        writer.append(trajectory(group))
    writer.close()
    requests = RequestWriter(run, WORKER, "coordinator-node-1-00000000")
    requests.append(Drain(deadline_s=1.0, reason=""))
    requests.close()
    publish_step(run, StepManifest(position=1, kind=StepKind.STEP))
    publish_void(run, Void(position=1, reason=""))
    publish_weights(run, 0, write_model)
    found = {"n": 1, "passed": 1.0, "pass_at_1": 1.0, "stderr": 0.0, "by_domain": {}, "failed": 0}
    publish_evaluation(run, Evaluation(version=0, **found))
    return run


def files_of(run):
    folders = (run.trajectories, run.requests, run.steps, run.evals, run.weights)
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def test_an_undamaged_run_has_no_findings(run):
    assert len(files_of(run)) == 9
    assert list(verify_run(run)) == []


def test_a_flip_or_a_cut_in_any_file_is_found_in_that_file(run):
    for path in files_of(run):
        data = path.read_bytes()
        for place in range(0, len(data), 1 if len(data) < 200 else 17):
            for damaged in (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place]):
                path.write_bytes(damaged)
                found = list(verify_run(run))
                assert found, f"{path}: {place}"
                assert {finding.file for finding in found} == {path}
                assert all(finding.offset <= place for finding in found)
        path.write_bytes(data)


def test_a_torn_tail_is_incomplete_while_its_writer_lives_and_truncated_after(run):
    fields = {"role": "rollout", "node": "node", "attempt": 1, "pid": 1, "pid_started": 0.0}
    members.write_endpoint(run, members.Endpoint(incarnation=WORKER, **fields))
    with open(run.trajectory_log(WORKER) / "000001.seg", "ab") as segment:
        segment.write(b"torn")
    assert [finding.kind for finding in verify_run(run)] == ["incomplete"]
    members.write_obituary(run, members.Obituary(incarnation=WORKER, code=-9, reason=""))
    assert [finding.kind for finding in verify_run(run)] == ["truncated"]


def test_a_finding_reads_as_file_offset_kind_and_words(run):
    path = run.trajectory_log(WORKER) / "000001.seg"
    path.write_bytes(path.read_bytes()[:-1])
    (finding,) = verify_run(run)
    assert str(finding).startswith(f"{path}: offset ")
    assert "truncated: record 2 is cut short" in str(finding)
