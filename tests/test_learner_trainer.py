"""The torch trainer: its numbers against a plain forward pass, determinism, export, save and restore."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from prorl_cli.errors import ProrlError
from prorl_cli.learner.batch import build_batch, micro_batches
from prorl_cli.learner.packing import pack
from prorl_cli.learner.torch_trainer import TorchTrainer
from prorl_cli.learner.trainer import Diverged, Interrupted, StepNumbers
from prorl_cli.spool.canary import distance, measure, read_canary
from prorl_cli.trajectory import Sequence, VersionSpan
from tests.learner_run import VOCAB, recipe, trajectory, write_model

NUMBERS = StepNumbers(learning_rate=1e-3, kl_beta=0.01, clip_low=0.2, clip_high=0.28, is_cap=2.0)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(folder)
    return folder


def batch(groups=3, updates=1, **changes):
    made = [[trajectory(g, m, version=0, **changes) for m in range(4)] for g in range(groups)]
    return build_batch(made, updates=updates, temperature=1.0)


def ready(model, **learner):
    trainer = TorchTrainer(recipe(**learner))
    trainer.load(model)
    trainer.set_reference(model)
    return trainer


def train(trainer, given, numbers=NUMBERS, halted=lambda: False):
    return trainer.train(given, numbers, halted)


@torch.no_grad()
def plain_logprobs(folder, row):
    """One unpadded row through the model as transformers gives it: [T − 1]."""
    ids = torch.tensor([row.sequence.ids])
    logits = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits[0, :-1] / row.temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_padded_packed_logprobs_equal_the_plain_forward_pass_of_each_row(model, temperature):
    trainer = ready(model)
    rows = batch(sampling={"temperature": temperature}).shares[0]
    for part in micro_batches(rows, 200):
        packed = pack(part)
        ours = trainer._frozen(trainer._policy, packed)
        for number, row in enumerate(part):
            mask = torch.tensor(row.sequence.mask[1:], dtype=torch.bool)
            mine = ours[number][packed.mask[number]]
            assert torch.allclose(mine, plain_logprobs(model, row)[mask], atol=2e-6)


def test_the_first_update_is_on_policy_and_a_fresh_reference_costs_nothing(model):
    given = batch()
    stats = train(ready(model), given)
    assert stats.clip_fraction == 0.0
    assert abs(stats.kl) < 1e-6
    assert stats.authored == sum(row.sequence.authored for row in given.shares[0])
    assert stats.updates == 1


def test_loss_of_an_on_policy_step_is_minus_the_weighted_mean_advantage(model):
    rows = batch(groups=2).shares[0]
    exact = [retold(row, plain_logprobs(model, row)) for row in rows]
    trainer = ready(model)
    stats = train(trainer, type(batch())(shares=(tuple(exact),)))
    tokens = sum(row.sequence.authored for row in exact)
    mean = sum(row.advantage * row.sequence.authored for row in exact) / tokens
    assert stats.is_weight_mean == pytest.approx(1.0, abs=1e-5)
    assert stats.loss == pytest.approx(-mean, abs=1e-5)


def retold(row, logprobs):
    """The row with the policy's own logprobs as the engine's."""
    values = [0.0, *(float(v) * bit for v, bit in zip(logprobs, row.sequence.mask[1:], strict=True))]
    sequence = Sequence.pack(row.sequence.ids, row.sequence.mask, values, row.sequence.spans)
    return type(row)(sequence=sequence, advantage=row.advantage, temperature=row.temperature)


def test_later_updates_use_the_logprobs_of_the_steps_start(model):
    given = batch(groups=4, updates=2)
    trainer = ready(model)
    one = ready(model)
    train(one, type(given)(shares=given.shares[:1]))
    stats = train(
        trainer, given, StepNumbers(learning_rate=0.05, kl_beta=0.0, clip_low=1e-4, clip_high=1e-4, is_cap=2.0)
    )
    assert stats.updates == 2
    assert stats.clip_fraction > 0, "the second share is off its start policy, and clipped where it moved along"


def test_micro_batches_do_not_change_the_step(model):
    given = batch()
    weights, stats = [], []
    for budget in (64, 100_000):
        trainer = ready(model, micro_batch_tokens=budget)
        stats.append(train(trainer, given))
        weights.append(torch.cat([t.flatten() for t in trainer._tensors().values()]))
    # As a whole: where a gradient is all but zero Adam makes a step of its rounding, on one processor or another.
    assert (weights[0] - weights[1]).norm() < 1e-5 * weights[1].norm()
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-5)
    assert len(micro_batches(given.shares[0], 64)) > 3


def test_the_same_rows_give_the_same_bits(model):
    results = []
    for _ in range(2):
        trainer = ready(model)
        for _ in range(3):
            train(trainer, batch(updates=2))
        results.append(trainer.digests())
    assert results[0] == results[1]


def test_save_and_restore_go_on_bit_for_bit(model, tmp_path):
    trainer = ready(model)
    train(trainer, batch())
    trainer.save(tmp_path)
    saved = trainer.digests()
    train(trainer, batch(groups=2))
    other = ready(model)
    other.restore(tmp_path)
    assert other.digests() == saved
    train(other, batch(groups=2))
    assert other.digests() == trainer.digests()


def test_an_exported_folder_is_the_policy_and_loads_in_transformers(model, tmp_path):
    trainer = ready(model)
    before, first = trainer.digests(), AutoModelForCausalLM.from_pretrained(model)
    train(trainer, batch())
    out = tmp_path / "out"
    out.mkdir()
    digests = trainer.export(out)
    assert digests == trainer.digests() != before
    assert sorted(path.name for path in out.iterdir()) == [
        "canary.json", "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert (
        distance(read_canary(out), measure(loaded).logprobs)
        < 1e-6
        < distance(read_canary(out), measure(first).logprobs)
    )
    ids = torch.arange(10)[None]
    assert torch.equal(loaded(ids).logits, trainer._policy(ids).logits)
    again = ready(out)
    assert again.digests() == digests


def test_a_half_precision_model_is_trained_and_exported_in_float32_and_its_config_says_so(tmp_path):
    (tmp_path / "half").mkdir()
    write_model(tmp_path / "half", dtype=torch.bfloat16)
    trainer = ready(tmp_path / "half")
    (tmp_path / "out").mkdir()
    trainer.export(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    assert next(AutoModelForCausalLM.from_pretrained(tmp_path / "out").parameters()).dtype == torch.float32


def poisoned():
    bad = Sequence.pack([1, 2, 3], [0, 1, 1], [0, float("nan"), -1.0], [VersionSpan(version=0, start=1, end=3)])
    return batch(groups=1, sequences=(bad,))


def test_a_gradient_that_is_not_finite_changes_nothing(model):
    trainer = ready(model)
    before = trainer.digests()
    with pytest.raises(Diverged, match="nan"):
        train(trainer, poisoned())
    assert trainer.digests() == before
    assert not trainer.dirty
    train(trainer, batch())
    clean = ready(model)
    train(clean, batch())
    assert trainer.digests() == clean.digests(), "nothing of the poisoned gradient is left"


def test_one_that_comes_after_an_update_leaves_the_trainer_dirty(model):
    trainer = ready(model)
    mixed = type(batch())(shares=(*batch().shares, *poisoned().shares))
    with pytest.raises(Diverged):
        train(trainer, mixed)
    assert trainer.dirty


def test_a_halt_between_micro_batches_leaves_the_weights_alone(model):
    trainer = ready(model, micro_batch_tokens=64)
    before = trainer.digests()
    asked = iter([False, True])
    with pytest.raises(Interrupted):
        train(trainer, batch(), halted=lambda: next(asked))
    assert trainer.digests() == before
    assert not trainer.dirty


def test_shuffled_or_equal_rewards_still_step_without_nan(model):
    trainer = ready(model)
    stats = train(trainer, batch(reward=1.0))
    assert stats.loss == pytest.approx(0.0, abs=1e-7)
    assert all(torch.isfinite(t).all() for t in trainer._tensors().values())


def test_a_folder_without_a_model_is_refused_in_words(tmp_path):
    with pytest.raises(ProrlError, match="cannot load the model"):
        TorchTrainer(recipe()).load(tmp_path)


def test_vocabulary_is_the_embeddings(model):
    assert ready(model).vocab_size == VOCAB
