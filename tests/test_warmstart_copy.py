"""Warm start from a Hugging Face folder: untied and copied whole, or refused in words."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from prorl_cli.agent import build_tiny_tokenizer
from prorl_cli.agent.tiny import VOCAB_SIZE
from prorl_cli.engine.weights import build_model, load, stage
from prorl_cli.errors import UserError
from prorl_cli.learner.torch_trainer import TorchTrainer
from prorl_cli.recipe import Recipe
from prorl_cli.spool.canary import distance, measure, read_canary
from prorl_cli.spool.tensors import tensor_digest
from prorl_cli.spool.weights import read_weights, verify_weights
from prorl_cli.warmstart import check_model
from prorl_cli.warmstart.__main__ import start
from tests.warmstart_parts import begin, finish, run_of


def save(folder, *, tied=True, dtype=torch.float32, **saving):
    """A small Llama as transformers saves it, and its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE + 3, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=tied, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder, **saving)
    build_tiny_tokenizer(folder)
    return folder


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "model")


def copied(tmp_path, model):
    run = run_of(tmp_path / "run", model=str(model))
    start(run.root)
    folder, manifest = read_weights(run, 0)
    assert verify_weights(folder) == []
    return folder, manifest, run


def logits(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(20)[None]).logits


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_copied_untied_and_answers_as_before(tmp_path, tied, capsys):
    model = save(tmp_path / "model", tied=tied)
    folder, manifest, _ = copied(tmp_path, model)
    assert check_model(str(model)) == []
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert not loaded.config.tie_word_embeddings
    assert loaded.lm_head.weight.data_ptr() != loaded.model.embed_tokens.weight.data_ptr()
    assert {name: tensor_digest(tensor) for name, tensor in loaded.state_dict().items()} == manifest.tensors
    assert torch.equal(logits(folder), logits(model))
    assert len(AutoTokenizer.from_pretrained(folder)) == VOCAB_SIZE
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 1
    assert check_model(str(folder)) == []


def test_the_canary_of_a_half_precision_model_is_computed_in_float32(tmp_path):
    folder, *_ = copied(tmp_path, save(tmp_path / "model", dtype=torch.bfloat16))
    full, half = (AutoModelForCausalLM.from_pretrained(folder, dtype=kind) for kind in (torch.float32, torch.bfloat16))
    canary = read_canary(folder)
    assert distance(canary, measure(full).logprobs) < 1e-6 < distance(canary, measure(half).logprobs)


def test_shards_become_one_file_of_the_stored_type(tmp_path):
    model = save(tmp_path / "model", dtype=torch.bfloat16, max_shard_size="40KB")
    assert len(list(model.glob("*.safetensors"))) > 1
    assert check_model(str(model)) == []
    folder, _, _ = copied(tmp_path, model)
    assert [path.name for path in folder.glob("*.safetensors*")] == ["model.safetensors"]
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert torch.equal(logits(folder), logits(model))


def test_engine_and_learner_take_the_copy(tmp_path, model):
    folder, manifest, run = copied(tmp_path, model)
    load(build_model(folder), stage(folder, manifest))
    trainer = TorchTrainer(Recipe.model_validate_json(run.resolved(1).read_text()))
    trainer.load(folder)
    assert trainer.digests() == manifest.tensors


def change(model, **fields):
    path = model / "config.json"
    config = {key: value for key, value in {**json.loads(path.read_text()), **fields}.items() if value is not None}
    path.write_text(json.dumps(config))


def only_pickles(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def lose_a_shard(model):
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def empty_index(model):
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text("{}")


def more_tokens(model):
    change(model, vocab_size=VOCAB_SIZE - 5)


def added_token(model):
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": VOCAB_SIZE + 3, "content": "<new>"})
    path.write_text(json.dumps(tokenizer))


BROKEN = {
    "no such folder": (shutil.rmtree, "there is no folder"),
    "a file": (lambda model: (shutil.rmtree(model), model.write_text("")), "there is no folder"),
    "no config": (lambda model: (model / "config.json").unlink(), "cannot read .*config.json: No such file"),
    "broken config": (lambda model: (model / "config.json").write_text("{"), "config.json is not JSON"),
    "config is a list": (lambda model: (model / "config.json").write_text("[]"), "config.json holds no JSON object"),
    "not a causal model": (
        lambda model: change(model, architectures=["BertForMaskedLM"]), "architecture is BertForMaskedLM: only .*ForCausalLM"
    ),
    "no architecture": (lambda model: change(model, architectures=None), "architecture is none"),
    "no vocabulary size": (lambda model: change(model, vocab_size=None), "gives no vocab_size"),
    "quantized": (lambda model: change(model, quantization_config={"quant_method": "fp8"}), "weights are quantized"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "broken tokenizer": (lambda model: (model / "tokenizer.json").write_text("x"), "tokenizer.json is not JSON"),
    "no vocabulary": (lambda model: (model / "tokenizer.json").write_text("{}"), "has no vocabulary"),
    "tokenizer larger": (more_tokens, f"larger than the model's vocabulary: its highest id is {VOCAB_SIZE - 1}, "),
    "tokenizer larger by an added token": (added_token, f"larger than the model's vocabulary: its highest id is {VOCAB_SIZE + 3}, "),
    "no weights": (lambda model: (model / "model.safetensors").unlink(), "has no safetensors weights"),
    "pickled weights": (only_pickles, "convert the model to safetensors"),
    "a lost shard": (lose_a_shard, "cannot read .*00001.safetensors: No such file"),
    "an empty index": (empty_index, "names no files"),
    "weights cut short": (lambda model: os.truncate(model / "model.safetensors", 9000), "is 9000 bytes long instead of"),
    "a header cut short": (lambda model: os.truncate(model / "model.safetensors", 50), "header cannot be read"),
    "empty weights": (lambda model: os.truncate(model / "model.safetensors", 0), "header cannot be read"),
    "other bytes": (
        lambda model: (model / "model.safetensors").write_bytes(b"\xff" * 4000), "header cannot be read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_folder_that_cannot_serve_is_refused_by_the_check_and_by_the_room(what, model, tmp_path):
    breaking, words = BROKEN[what]
    breaking(model)
    (problem,) = check_model(str(model))
    assert re.search(words, problem)
    run = run_of(tmp_path / "run", model=str(model))
    with pytest.raises(UserError, match=words):
        start(run.root)
    assert os.listdir(run.weights) == []


def test_every_problem_of_a_folder_is_told_at_once(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert len(check_model(str(tmp_path))) == 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": 96}, "cannot load|do not fit"),
        ({"num_hidden_layers": 3}, "do not fit its config.json: missing keys"),
        ({"num_hidden_layers": 1}, "do not fit its config.json: unexpected keys"),
        ({"model_type": "unheard-of"}, "cannot load the model in"),
        ({"model_type": "unheard-of", "auto_map": {"AutoConfig": "code.Config"}}, "cannot load the model in"),
    ],
)
def test_what_only_loading_finds_is_a_user_error_too(model, tmp_path, fields, words):
    change(model, **fields)
    run = run_of(tmp_path / "run", model=str(model))
    with pytest.raises(UserError, match=words):
        start(run.root)
    assert os.listdir(run.weights) == []


def test_a_refused_model_is_one_line_and_exit_code_2(model, tmp_path):
    os.truncate(model / "model.safetensors", 9000)
    code, output, errors = finish(begin(run_of(tmp_path / "run", model=str(model)), tmp_path / "cache"))
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and "is 9000 bytes long" in errors


def test_a_tokenizer_with_a_list_of_pieces_is_understood(model):
    pieces = [[f"p{number}", -1.0] for number in range(VOCAB_SIZE + 4)]
    (model / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    (problem,) = check_model(str(model))
    assert f"highest id is {VOCAB_SIZE + 3}" in problem


def test_the_built_in_model_needs_no_check_and_checking_needs_no_torch(model):
    code = (
        "import sys; from prorl_cli.warmstart import check_model\n"
        "print(check_model('builtin:tiny'), check_model(sys.argv[1]), 'torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] [] False"
