"""The walk over real run directories: resume, replay, reset, restore, void, lineage, retention."""

import functools
import os

import pytest

from prorl_cli.errors import Fenced, ProrlError
from prorl_cli.learner.checkpoint import Reference, read_checkpoint
from prorl_cli.spool.evals import Evaluation, publish_evaluation
from prorl_cli.spool.members import order_restore
from prorl_cli.spool.steps import read_void
from prorl_cli.spool.weights import read_weights, verify_weights
from tests.learner_run import Spool, make_run, make_walk, recipe, tensors, trajectory, walk_to


def steps_of(spool, count=8, resets=(4,), restores=()):
    for n in range(1, count + 1):
        target = dict(restores).get(n)
        if target is not None:
            spool.restore(target)
        else:
            spool.step(reset_reference=n in resets, updates=1 + n % 2)


def started(run, **options):
    walk = make_walk(run, **options)
    walk.begin()
    return walk


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run and walk that nothing disturbed, made once for each plan of steps."""

    @functools.cache
    def made(count=8, resets=(4,), restores=()):
        run = make_run(tmp_path_factory.mktemp("undisturbed") / "run")
        steps_of(Spool(run), count, resets, restores)
        walk = started(run)
        walk_to(walk, count)
        return run, walk

    return made


@pytest.mark.parametrize("cut", [1, 4, 5, 7])
@pytest.mark.parametrize("plan", [{"resets": (4,)}, {"resets": (2, 5)}, {"resets": (2,), "restores": ((5, 3),)}])
def test_n_steps_a_fresh_process_and_the_rest_equal_the_undisturbed_run(undisturbed, run, cut, plan):
    steady, walk = undisturbed(**plan)
    steps_of(Spool(run), **plan)
    walk_to(started(run), cut)
    again = started(run)
    assert again.progress.position == cut // 3 * 3, "checkpoints are every three steps"
    walk_to(again, 8)
    assert tensors(run, 8) == tensors(steady, 8)
    assert again.progress == walk.progress
    assert not [name for name in os.listdir(run.weights) if "." in name], "no replay differed"


def test_the_reference_is_the_pinned_weights_and_not_the_loaded_policy(run):
    spool = Spool(run)
    for _ in range(4):
        spool.step(kl_beta=0.5)
    walk_to(started(run), 3)
    row = started(run).take(4)
    assert row["kl"] > 1e-4, "captured after a resume it would be exactly 0"


def test_a_reset_makes_the_kl_start_from_zero_and_is_remembered(run):
    spool = Spool(run)
    for n in range(1, 7):
        spool.step(reset_reference=n == 5)
    walk = started(run)
    rows = walk_to(walk, 6)
    assert rows[3]["kl"] > 1e-4
    assert rows[4]["kl"] == 0.0
    assert walk.progress.reference == Reference(version=4)
    assert read_checkpoint(run.checkpoint(6)).resets == (5,)


def test_a_replay_over_a_reset_whose_start_weights_were_collected_makes_them_again(undisturbed, run):
    steady, _ = undisturbed(count=11, resets=(2, 4, 10))
    steps_of(Spool(run), count=11, resets=(2, 4, 10))
    walk_to(started(run), 11)
    for step in (3, 6, 9):
        checkpoint = run.checkpoint(step) / "trainer.pt"
        if checkpoint.exists():
            checkpoint.write_bytes(b"damaged")
    again = started(run)
    assert again.progress.position == 0
    walk_to(again, 11)
    assert tensors(run, 11) == tensors(steady, 11)
    assert again.progress.reference == Reference(version=9)


def test_a_replayed_position_publishes_nothing(run):
    steps_of(Spool(run), count=5)
    walk_to(started(run), 5)
    before = {name: (run.weights / name).stat().st_ino for name in os.listdir(run.weights)}
    rows = walk_to(started(run), 5)
    assert [row["replay"] for row in rows] == [True, True]
    assert {name: (run.weights / name).stat().st_ino for name in os.listdir(run.weights)} == before


def test_a_replay_that_differs_opens_a_lineage_that_readers_prefer(run, caplog):
    steps_of(Spool(run), count=5)
    walk_to(started(run), 5)
    run.resolved(1).write_text(recipe(weight_decay=0.5).model_dump_json())
    before = tensors(run, 5)
    walk_to(started(run), 5)
    folder, manifest = read_weights(run, 5)
    assert manifest.lineage.startswith("1-")
    assert manifest.tensors != before
    assert verify_weights(folder) == []
    assert (run.weights / "000005").is_dir(), "what was published is not touched"
    assert "the replay differs" in caplog.text
    caplog.clear()
    walk_to(started(run), 5)
    assert "the replay differs" not in caplog.text, "the newest lineage is what the next replay gives"


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "no manifest"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_word(undisturbed, run, damage, caplog):
    steady, _ = undisturbed()
    steps_of(Spool(run))
    walk_to(started(run), 7)
    state = run.checkpoint(6) / "trainer.pt"
    whole = state.read_bytes()
    if damage == "cut":
        state.write_bytes(whole[:-7])
    elif damage == "flipped":
        state.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
    elif damage == "gone":
        state.unlink()
    else:
        (run.checkpoint(6) / "MANIFEST.json").unlink()
    again = started(run)
    assert again.progress.position == 3
    assert "checkpoint 6 is damaged" in caplog.text
    walk_to(again, 8)
    assert tensors(run, 8) == tensors(steady, 8)
    assert read_checkpoint(run.checkpoint(6)).position == 6, "the replay made it anew"


def test_a_restore_publishes_the_checkpoints_weights_and_goes_on_from_its_optimizer(tmp_path, run):
    spool = Spool(run)
    for _ in range(5):
        spool.step()
    spool.restore(3)
    repeated = spool.step()
    walk = started(run)
    walk_to(walk, 3)
    third = tensors(run, 3)
    walk_to(walk, 7)
    assert tensors(run, 6) == third
    other = make_run(tmp_path / "straight")
    straight = Spool(other)
    for _ in range(3):
        straight.step()
    straight.step(records=[[trajectory(ref.group, ref.member, version=5) for ref in g] for g in repeated.groups])
    walk_to(started(other), 4)
    assert tensors(run, 7) == tensors(other, 4)


def test_a_restore_to_0_is_the_beginning_with_a_fresh_optimizer(run):
    spool = Spool(run)
    for _ in range(2):
        spool.step()
    spool.restore(0)
    walk = started(run)
    walk_to(walk, 3)
    assert tensors(run, 3) == tensors(run, 0)
    assert not walk._trainer._optimizer.state


def test_a_restore_to_a_checkpoint_that_is_not_there_is_void_and_changes_nothing(run):
    spool = Spool(run)
    spool.step()
    spool.restore(7)
    walk_to(started(run), 2)
    assert "checkpoint 7 cannot be restored" in read_void(run, 2).reason
    assert tensors(run, 2) == tensors(run, 1)


def test_a_corrupt_record_voids_its_step_and_no_other(run):
    spool = Spool(run)
    spool.step()
    spool.step()
    spool.step()
    segment = next(run.trajectory_log(spool.worker).glob("*.seg"))
    data = bytearray(segment.read_bytes())
    middle = len(data) // 2
    data[middle] ^= 0xFF
    segment.write_bytes(data)
    rows = walk_to(started(run), 3)
    assert [row["outcome"] for row in rows] == ["step", "void", "step"]
    assert spool.worker in read_void(run, 2).reason
    assert tensors(run, 1) == tensors(run, 2) != tensors(run, 3)
    assert walk_to(started(run), 3) == []


@pytest.mark.parametrize(
    ("records", "numbers", "words"),
    [
        ([[trajectory(0, m, version=0, reward=m % 2) for m in range(2)]], {"is_cap": 0.0}, "is_cap"),
        ([], {}, "no record holds a token"),
    ],
)
def test_data_that_may_not_be_trained_on_voids_its_step(run, records, numbers, words):
    spool = Spool(run)
    spool.step(reset_reference=False)
    spool.step(reset_reference=True, records=records, **numbers)
    walk = started(run)
    rows = walk_to(walk, 2)
    assert rows[1]["outcome"] == "void"
    assert words in read_void(run, 2).reason
    assert tensors(run, 2) == tensors(run, 1)
    assert walk.progress.reference == Reference(version=0), "a void resets nothing"


@pytest.mark.parametrize("updates", [1, 2])
def test_a_step_that_diverges_is_void_even_half_way_and_leaves_nothing_behind(run, updates):
    spool = Spool(run)
    spool.step()
    blown = {"learning_rate": 1e38, "reset_reference": True}
    spool.step(updates=updates, **blown) if updates == 2 else spool.step(is_cap=1e38, kl_beta=3e38)
    spool.step()
    rows = walk_to(started(run), 3)
    assert [row["outcome"] for row in rows if not row["replay"]] == ["step", "void", *["void"] * (updates - 1), "step"]
    assert "diverged" in read_void(run, 2).reason
    assert tensors(run, 1) == tensors(run, 2) != tensors(run, 3)
    assert walk_to(started(run), 3) == []


def test_a_step_on_which_learners_died_k_times_is_void_the_next_time(run):
    spool = Spool(run)
    steps_of(spool, count=3, resets=())
    walk = started(run, deaths={2: 3, 3: 2})
    rows = walk_to(walk, 3)
    assert [row["outcome"] for row in rows] == ["step", "void", "step"]
    assert read_void(run, 2).reason == "3 learners died on it"
    assert tensors(run, 2) == tensors(run, 1)
    assert walk_to(started(run), 3) == []


def test_a_step_that_once_succeeded_is_never_voided_for_deaths_in_its_replay(run):
    steps_of(Spool(run), count=2, resets=())
    walk_to(started(run), 2)
    before = tensors(run, 2)
    rows = walk_to(started(run, deaths={1: 9, 2: 9}), 2)
    assert [row["outcome"] for row in rows] == ["step", "step"]
    assert tensors(run, 2) == before


def test_a_superseded_learner_publishes_nothing(run):
    steps_of(Spool(run), count=1)

    def fence():
        raise Fenced("superseded")

    walk = started(run, fence=fence)
    with pytest.raises(Fenced):
        walk.take(1)
    assert os.listdir(run.weights) == ["000000"]


def test_one_superseded_while_it_writes_publishes_neither_weights_nor_a_checkpoint(run):
    steps_of(Spool(run), count=1, resets=())
    looks = []

    def fence():
        looks.append(1)
        if len(looks) in (2, 5):
            raise Fenced("superseded")

    walk = started(run, fence=fence)
    with pytest.raises(Fenced):
        walk.take(1)
    assert os.listdir(run.weights) == ["000000"]
    walk = started(run, fence=fence)
    walk.take(1)
    with pytest.raises(Fenced):
        walk.checkpoint()
    assert os.listdir(run.checkpoints) == []


def test_retention_keeps_the_roots_and_nothing_else(run):
    steps_of(Spool(run), count=11, resets=(3,))
    walk = started(run)
    walk_to(walk, 4)
    publish_evaluation(run, Evaluation(version=4, n=1, passed=1, pass_at_1=1.0, stderr=0, by_domain={}, failed=0))
    walk_to(walk, 11, loaded={5})
    assert sorted(os.listdir(run.checkpoints)) == ["000006", "000009"]
    # 2: the reference; 4: best evaluated; 5: loaded; 6, 9: checkpoints; 9 … 11: the newest max_staleness + 2
    assert sorted(map(int, os.listdir(run.weights))) == [0, 2, 4, 5, 6, 9, 10, 11]


def test_a_checkpoint_that_the_attempt_was_told_to_restore_outlives_the_keep_rule(run):
    steps_of(Spool(run), count=4, resets=())
    walk_to(started(run), 4)
    order_restore(run, 1, 3)
    spool = Spool(run, "rollout-n-1-00000002")
    spool.position = 4
    for _ in range(6):
        spool.step()
    walk_to(started(run), 10)
    assert run.checkpoint_steps() == [3, 6, 9]


def test_a_clean_stop_saves_where_it_stands_once(run):
    steps_of(Spool(run), count=2)
    walk = started(run)
    walk_to(walk, 2)
    walk.checkpoint()
    walk.checkpoint()
    assert run.checkpoint_steps() == [2]
    assert started(run).progress.position == 2


def test_what_a_killed_learner_left_half_written_is_swept_at_the_start(run):
    os.utime(run.weights)
    (run.weights / ".tmp-0123").mkdir()
    (run.weights / ".tmp-0123" / "model.safetensors").write_bytes(b"half")
    (run.checkpoints / ".tmp-4567").mkdir()
    for folder in (run.weights / ".tmp-0123", run.checkpoints / ".tmp-4567"):
        os.utime(folder, (1, 1))
        for file in folder.iterdir():
            os.utime(file, (1, 1))
    started(run)
    assert os.listdir(run.weights) == ["000000"]
    assert os.listdir(run.checkpoints) == []


def test_a_reference_that_is_gone_is_an_error_not_another_reference(run):
    steps_of(Spool(run), count=4, resets=(3,))
    walk_to(started(run), 3)
    (run.weight(2) / "model.safetensors").unlink()
    with pytest.raises(ProrlError, match="reference policy cannot be loaded"):
        started(run)
