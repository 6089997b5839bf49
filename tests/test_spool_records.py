"""Step log, evaluations, weights and membership: published once, sealed, fenced."""

import json
import os

import pytest

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord, Fenced
from prorl_cli.rundir import Incarnation
from prorl_cli.spool import members, sealed, steps, weights
from prorl_cli.spool.evals import Evaluation, evaluations, publish_evaluation, read_evaluation
from prorl_cli.trajectory import Dropped, RecordRef, StepKind, StepManifest, Void
from tests.killing import fork, wait
from tests.spool_world import new_run


@pytest.fixture
def run(tmp_path):
    return new_run(tmp_path / "run")


def manifest(position, **changes):
    ref = RecordRef(writer="one", seq=3, group=2, member=1)
    fields = {"groups": ((ref, ref),), "dropped": (Dropped(group=1, reason="late"),), "learning_rate": 1e-3, **changes}
    return StepManifest(position=position, kind=StepKind.STEP, **fields)


def test_a_position_is_published_once_and_whoever_loses_adopts_the_winners(run):
    assert (steps.last_position(run), steps.read_step(run, 1)) == (0, None)
    first = manifest(1, published_by="a")
    assert steps.publish_step(run, first) == first
    assert steps.publish_step(run, manifest(1, published_by="b")) == first
    steps.publish_step(run, manifest(2))
    assert list(steps.steps(run)) == [first, manifest(2)]
    assert steps.last_position(run) == 2


def test_a_void_stands_beside_its_position(run):
    steps.publish_step(run, manifest(1))
    assert steps.read_void(run, 1) is None
    verdict = Void(position=1, reason="killed the learner 3 times")
    assert steps.publish_void(run, verdict) == verdict
    assert steps.publish_void(run, Void(position=1, reason="other")) == verdict
    assert steps.read_void(run, 1) == verdict
    assert (steps.last_position(run), len(list(steps.steps(run)))) == (1, 1)


def test_a_sealed_file_flipped_or_cut_anywhere_is_corrupt_by_name(run):
    path = run.step(1)
    steps.publish_step(run, manifest(1))
    data = path.read_bytes()
    assert json.loads(data)["record"]["position"] == 1
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptRecord, match=rf"{path}: offset \d+: (corrupt|truncated)"):
            steps.read_step(run, 1)
        path.write_bytes(data[:place])
        with pytest.raises(CorruptRecord, match=rf"{path}: offset {place}: truncated"):
            steps.read_step(run, 1)


def test_a_sealed_record_of_another_kind_is_corrupt(run):
    run.void(1).write_bytes(sealed.seal(manifest(1)))
    with pytest.raises(CorruptRecord, match="not a Void"):
        steps.read_void(run, 1)


def test_evaluations_are_read_by_version_and_the_first_stands(run):
    def made(version, passed):
        domains = {"sums": passed / 4}
        return Evaluation(
            version=version, n=4, passed=passed, pass_at_1=passed / 4, stderr=0.1, by_domain=domains, failed=1
        )

    assert evaluations(run) == {}
    publish_evaluation(run, made(10, 3))
    publish_evaluation(run, made(0, 1))
    assert publish_evaluation(run, made(10, 0)) == made(10, 3)
    assert list(evaluations(run).items()) == [(0, made(0, 1)), (10, made(10, 3))]
    assert read_evaluation(run, 5) is None


def write_model(text="weights"):
    def write(folder):
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text(text)
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text(text)
        return {"layer.weight": "abc"}

    return write


def refuse(folder):
    raise AssertionError("must not be written again")


def test_weights_are_published_whole_with_a_manifest_of_every_file_and_never_again(run):
    assert (weights.latest_weights(run), weights.read_weights(run, 0)) == (-1, None)
    made = weights.publish_weights(run, 0, write_model(), written_by="learner")
    assert sorted(made.files) == ["config.json", "deep/file", "model.safetensors"]
    assert made.tensors == {"layer.weight": "abc"}
    assert weights.publish_weights(run, 0, refuse) == made
    assert weights.read_weights(run, 0) == (run.weight(0), made)
    assert weights.verify_weights(run.weight(0)) == []
    assert fsio.names(run.weights) == ["000000"]


def test_a_write_that_raises_leaves_nothing(run):
    def fail(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("killed the learner")

    with pytest.raises(RuntimeError):
        weights.publish_weights(run, 1, fail)
    assert fsio.names(run.weights) == []


def test_the_newest_lineage_of_a_version_is_read(run):
    weights.publish_weights(run, 3, write_model("a"))
    weights.publish_weights(run, 3, write_model("b"), lineage="1-abc")
    weights.publish_weights(run, 3, write_model("c"), lineage="2-def")
    folder, found = weights.read_weights(run, 3)
    assert (folder, found.lineage) == (run.weight(3, "2-def"), "2-def")
    assert weights.latest_weights(run) == 3


@pytest.mark.parametrize("name", ["model.safetensors", "deep/file", weights.MANIFEST])
def test_damaged_weights_are_told_and_a_cut_file_is_not_even_opened(run, name):
    weights.publish_weights(run, 3, write_model())
    path = run.weight(3) / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"?")
    assert [path.name in text for text in weights.verify_weights(run.weight(3))] == [True]
    path.write_bytes(data[:-1])
    assert [path.name in text for text in weights.verify_weights(run.weight(3))] == [True]
    with pytest.raises(CorruptRecord, match=path.name):
        weights.read_weights(run, 3)
    path.unlink()
    assert [path.name in text for text in weights.verify_weights(run.weight(3))] == [True]


def test_collected_weights_are_gone_in_every_lineage_and_the_kept_are_not(run):
    for version in range(4):
        weights.publish_weights(run, version, write_model())
    weights.publish_weights(run, 1, write_model(), lineage="1-abc")
    assert weights.collect_weights(run, {0, 3}) == [1, 2]
    assert fsio.names(run.weights) == ["000000", "000003"]


def test_attempts_are_claimed_in_order_and_an_older_one_is_fenced(run):
    assert members.current_attempt(run) == 0
    assert members.claim_attempt(run, {"host": "a"}) == 1
    members.ensure_current(run, 1)
    assert members.claim_attempt(run, {"host": "b"}) == 2
    members.ensure_current(run, 2)
    with pytest.raises(Fenced, match="superseded by attempt 2"):
        members.ensure_current(run, 1)


def test_of_racing_launches_that_saw_the_same_attempt_end_exactly_one_wins(run, tmp_path):
    members.claim_attempt(run, {})

    def claim(me):
        try:
            number = members.claim_attempt(run, {"me": me}, after=1)
            (tmp_path / f"won-{me}").write_text(str(number))
        except Fenced as error:
            assert "another launch has just claimed attempt 2" in str(error)

    pids = [fork(lambda me=me: claim(me)) for me in range(8)]
    assert [wait(pid) for pid in pids] == [0] * 8
    winners = [path for path in tmp_path.iterdir() if path.name.startswith("won-")]
    assert [path.read_text() for path in winners] == ["2"]
    assert members.current_attempt(run) == 2


def endpoint(name, **changes):
    fields = {"role": "engine", "node": "n", "attempt": 1, "pid": os.getpid(), "pid_started": 1.5, **changes}
    return members.Endpoint(incarnation=name, **fields)


def test_endpoints_replace_themselves_and_damaged_ones_are_left_out(run):
    one = str(Incarnation.new("engine", "node-1", 1))
    two = str(Incarnation.new("router", "node-1", 2))
    members.write_endpoint(run, endpoint(one, beat=1))
    members.write_endpoint(run, endpoint(one, beat=2, facts={"tokens": 3, "share": 0.5, "note": "x"}))
    members.write_endpoint(run, endpoint(two, attempt=2))
    run.endpoint("torn").write_bytes(b"")
    assert sorted(e.incarnation for e in members.read_endpoints(run)) == sorted([one, two])
    (found,) = members.read_endpoints(run, attempt=1)
    assert (found.beat, found.facts) == (2, {"tokens": 3, "share": 0.5, "note": "x"})


def test_the_living_are_of_this_attempt_and_have_no_end(run):
    for name, changes in {"a": {}, "b": {}, "c": {"state": "ended"}, "d": {"attempt": 0}}.items():
        members.write_endpoint(run, endpoint(name, **changes))
    members.write_obituary(run, members.Obituary(incarnation="b", code=-9, reason="killed"))
    members.write_obituary(run, members.Obituary(incarnation="b", code=0, reason="a later witness"))
    obituaries = members.read_obituaries(run)
    assert obituaries["b"].reason == "killed"
    assert [e.incarnation for e in members.live(members.read_endpoints(run), obituaries, 1)] == ["a"]


def test_a_damaged_obituary_still_names_the_dead(run):
    members.write_obituary(run, members.Obituary(incarnation="a", code=0, reason=""))
    run.obituary("a").write_bytes(b"{")
    assert "unreadable" in members.read_obituaries(run)["a"].reason


def test_the_last_stop_order_and_the_first_outcome_stand(run):
    members.claim_attempt(run, {})
    assert members.read_stop(run, 1) is None
    members.order_stop(run, 1, members.StopOrder(mode="drain", deadline_s=30))
    members.order_stop(run, 1, members.StopOrder(mode="now", deadline_s=0))
    assert members.read_stop(run, 1) == members.StopOrder(mode="now", deadline_s=0)
    done = members.Outcome(state="done", reason="all steps", step=9)
    assert members.read_outcome(run, 1) is None
    assert members.publish_outcome(run, 1, done) == done
    assert members.publish_outcome(run, 1, members.Outcome(state="failed", reason="", step=0)) == done
    assert members.read_outcome(run, 1) == done
