"""Weights are served only if every byte is what the manifest says, in the file and then in the model."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from prorl_cli.engine import weights
from prorl_cli.engine.decoder import Decoder
from prorl_cli.engine.weights import Staged, Unproved
from prorl_cli.rundir import RunDir
from prorl_cli.spool.tensors import tensor_digest
from prorl_cli.spool.weights import publish_weights, read_weights
from tests.engine_kit import digests, publish, respell, tiny_model


@pytest.fixture
def run(tmp_path):
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def same(model, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", ["llama", "llama-tied", "qwen2"])
def test_a_published_version_ends_up_in_the_model_whole(run, kind):
    first, second = tiny_model(1, kind), tiny_model(2, kind)
    folder, manifest = publish(run, 0, first)
    model = weights.build_model(folder)
    weights.load(model, weights.stage(folder, manifest))
    assert same(model, first)
    weights.load(model, weights.stage(*publish(run, 1, second)))
    assert same(model, second) and not same(model, first)


def test_bfloat16_weights_are_served_in_float32_and_proved_in_bfloat16(run):
    model = tiny_model(1).to(torch.bfloat16)

    def write(folder):
        model.save_pretrained(folder)
        return {name: tensor_digest(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}

    publish_weights(run, 0, write)
    folder, manifest = read_weights(run, 0)
    served = weights.build_model(folder)
    weights.load(served, weights.stage(folder, manifest))
    assert served.dtype is torch.float32 and same(served, model.float())


def test_weights_in_several_files_are_read_whole(run):
    model = tiny_model(1)

    def write(folder):
        model.save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        found = digests(folder)
        names = sorted(tensors)
        (folder / "model.safetensors").unlink()
        save_file({name: tensors[name] for name in names[:5]}, folder / "model-00001-of-00002.safetensors")
        save_file({name: tensors[name] for name in names[5:]}, folder / "model-00002-of-00002.safetensors")
        return found

    publish_weights(run, 0, write)
    folder, manifest = read_weights(run, 0)
    served = weights.build_model(folder)
    weights.load(served, weights.stage(folder, manifest))
    assert same(served, model)


@pytest.mark.parametrize("offset", [5, 2000, -1])
def test_a_flipped_byte_in_the_file_is_found_before_anything_pauses(run, offset):
    folder, manifest = publish(run, 0, tiny_model(1))
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(Unproved, match=r"model\.safetensors"):
        weights.stage(folder, manifest)


def test_a_file_that_is_whole_but_not_what_was_trained_is_found(run):
    """The writer's tensors and its file disagree: the file's own digest is right."""

    def spoil(folder: Path):
        respell(folder, lambda tensors: tensors["model.norm.weight"].mul_(1.001))

    folder, manifest = publish(run, 0, tiny_model(1), change=spoil)
    with pytest.raises(Unproved, match=r"1 tensors differ.*model\.norm\.weight"):
        weights.stage(folder, manifest)


def staged(model, edit=lambda tensors: None):
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    edit(tensors)
    return Staged(version=1, tensors=tensors, digests={name: tensor_digest(t) for name, t in tensors.items()})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "lacks tensors of the model: model.norm.weight"),
        (lambda tensors: tensors.update(extra=torch.zeros(1)), "do not fit the model: extra"),
        (lambda tensors: tensors.update({"model.norm.weight": torch.zeros(3)}), "do not fit the model: model.norm"),
    ],
)
def test_every_name_must_be_consumed_and_nothing_left_as_it_was(edit, words):
    model = tiny_model(1)
    with pytest.raises(Unproved, match=words):
        weights.load(model, staged(tiny_model(2), edit))
    assert same(model, tiny_model(1)), "a version that cannot be whole changes nothing"


def test_a_tensor_that_does_not_arrive_in_the_model_is_found(monkeypatch):
    """A copy that silently does nothing, as a packed weight would."""
    model, wanted = tiny_model(1), staged(tiny_model(2))
    copy = torch.Tensor.copy_
    stuck = model.lm_head.weight.data_ptr()
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, new: to if to.data_ptr() == stuck else copy(to, new))
    decoder = Decoder(model, slots=1)
    with pytest.raises(Unproved, match=r"version 1 in the model: 1 tensors differ.*lm_head"):
        decoder.reload(1, lambda: weights.load(model, wanted))
    assert decoder.version == -1


def test_nan_is_a_value_like_any_other_to_the_proof():
    model = tiny_model(1)
    wanted = staged(tiny_model(2), lambda tensors: tensors["model.norm.weight"].fill_(math.nan))
    weights.load(model, wanted)
    assert model.model.norm.weight.isnan().all()
