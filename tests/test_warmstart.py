"""Warm start: weights 000000 of a real run, made once, cached, whole, and the same every time."""

import json
import os

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prorl_cli.agent.tiny import END, VOCAB_SIZE, encode
from prorl_cli.engine.weights import build_model, load, stage
from prorl_cli.errors import Fenced, UserError
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt
from prorl_cli.spool.tensors import tensor_digest
from prorl_cli.spool.weights import read_weights, verify_weights
from prorl_cli.warmstart.__main__ import start
from prorl_cli.warmstart.cache import content_key
from prorl_cli.warmstart.training import batches, schedule
from tests.warmstart_parts import SMALL, TASKS, begin, finish, run_of

SUMS = {"domain": "sum", "source": "reasoning_gym:chain_sum", "options": {"max_terms": 3, "max_digits": 2}}


def weights(run):
    folder, _ = read_weights(run, 0)
    return (folder / "model.safetensors").read_bytes()


def recipe_of(run):
    return Recipe.model_validate_json(run.resolved(1).read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run whose warm start has ended, its cache, and what the process said."""
    folder = tmp_path_factory.mktemp("made")
    run = run_of(folder / "run", tasks=[SUMS, *TASKS])
    return run, folder / "cache", finish(begin(run, folder / "cache"))


@pytest.fixture
def cached(made, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(made[1]))
    return made[1]


def test_the_process_says_how_far_it_is_and_ends_well(made):
    code, output, errors = made[2]
    assert code == 0, errors
    assert "step 6 of 6, loss " in output
    assert output.splitlines()[-1] == "warm start: weights 000000 are published"


def test_transformers_loads_the_folder_untied_and_with_its_tokenizer(made):
    folder, manifest = read_weights(made[0], 0)
    assert verify_weights(folder) == []
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert not model.config.tie_word_embeddings
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert {name: tensor_digest(tensor) for name, tensor in model.state_dict().items()} == manifest.tensors
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == VOCAB_SIZE == model.config.vocab_size
    assert tokenizer.encode("3 cups at 4. Total?") == encode("3 cups at 4. Total?")
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id == END


def test_servers_find_what_they_look_for_in_its_config(made):
    folder, _ = read_weights(made[0], 0)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] == 32
    assert config["hidden_size"] == config["num_attention_heads"] * config["head_dim"]
    assert config["dtype"] == "float32"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    assert config["max_position_embeddings"] == recipe_of(made[0]).engine.max_model_len


def test_the_embedding_of_every_token_can_be_trained(made):
    model = AutoModelForCausalLM.from_pretrained(read_weights(made[0], 0)[0])
    assert model.model.embed_tokens.padding_idx is None


def test_the_embedded_engine_proves_the_weights(made):
    folder, manifest = read_weights(made[0], 0)
    load(build_model(folder), stage(folder, manifest))


def test_a_second_start_of_the_same_run_changes_nothing(made, cached, capsys):
    before = {path: path.stat().st_mtime_ns for path in made[0].weights.rglob("*")}
    start(made[0].root)
    assert {path: path.stat().st_mtime_ns for path in made[0].weights.rglob("*")} == before
    assert capsys.readouterr().out == "warm start: the run has its weights\n"


def test_another_run_takes_equal_weights_from_the_cache(made, cached, tmp_path, capsys):
    other = run_of(tmp_path / "other", tasks=[SUMS, *TASKS], seed=7)
    start(other.root)
    said = capsys.readouterr().out
    assert "is in the cache" in said
    assert "step" not in said
    assert weights(other) == weights(made[0])


def test_a_model_made_again_is_bit_equal(made, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    other = run_of(tmp_path / "other", tasks=[SUMS, *TASKS])
    start(other.root)
    assert "step 6 of 6" in capsys.readouterr().out
    assert weights(other) == weights(made[0])


def test_the_key_follows_all_that_decides_the_model_and_nothing_else(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "What is 1 + 2?", "answer": 3}\n')
    file = [{"domain": "math", "source": str(rows)}]
    variants = {
        "plain": {}, "steps": {"warmstart": {**SMALL, "steps": 7}}, "noise": {"warmstart": {**SMALL, "guess": 0.5}},
        "its seed": {"warmstart": {**SMALL, "seed": 1}}, "tasks": {"tasks": [{**TASKS[0], "options": {"difficulty": 3}}]}, "length": {"engine": {"max_model_len": 4096}},
        "prompt": {"agent": {"renderer": "tiny", "system_prompt": "Count."}}, "file": {"tasks": file},
    }  # fmt: skip
    keys = {name: content_key(recipe_of(run_of(tmp_path / name, **change))) for name, change in variants.items()}
    assert len(set(keys.values())) == len(variants)
    same = run_of(tmp_path / "same", seed=9, learner={"steps": 3}, cluster={"rollout": {"nodes": 2}})
    assert content_key(recipe_of(same)) == keys["plain"]
    rows.write_text('{"question": "What is 1 + 3?", "answer": 4}\n')
    assert content_key(recipe_of(RunDir(tmp_path / "file"))) != keys["file"]


def test_a_superseded_attempt_publishes_nothing(made, cached, tmp_path, monkeypatch):
    run = run_of(tmp_path / "run")

    def superseded(recipe, say):
        claim_attempt(run, {})
        return original(recipe, say)

    from prorl_cli.warmstart import obtain

    original = obtain.obtain_tiny
    monkeypatch.setattr(obtain, "obtain_tiny", superseded)
    with pytest.raises(Fenced):
        start(run.root)
    assert read_weights(run, 0) is None


def test_a_diverging_start_says_what_to_lower(cached, tmp_path):
    run = run_of(tmp_path / "run", warmstart={**SMALL, "lr": 1e30})
    with pytest.raises(UserError, match=r"lower warmstart\.lr"):
        start(run.root)
    assert os.listdir(run.weights) == []


def test_a_folder_that_is_no_run_is_one_line_and_exit_code_2(tmp_path):
    code, output, errors = finish(begin(RunDir(tmp_path), tmp_path))
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1 and "is not a run directory" in errors


def test_there_are_as_many_batches_as_steps_the_clean_ones_first(tmp_path):
    changes = {"steps": 20, "batch": 8, "clean": 0.5, "guess": 1.0}
    recipe = recipe_of(run_of(tmp_path / "run", warmstart={**SMALL, **changes}))
    found = list(batches(recipe))
    assert [len(batch) for batch in found] == [8] * 20
    called = [[any(not own for own in made.authored[made.prompt :]) for made in batch] for batch in found]
    assert [all(of) for of in called] == [True] * 10 + [False] * 10
    assert not any(any(of) for of in called[10:])


def test_batches_hold_transcripts_of_similar_length(tmp_path):
    changes = {"steps": 16, "batch": 16, "clean": 1.0}
    recipe = recipe_of(run_of(tmp_path / "run", warmstart={**SMALL, **changes}))
    found = list(batches(recipe))
    spreads = [max(made.prompt for made in batch) - min(made.prompt for made in batch) for batch in found]
    prompts = [made.prompt for batch in found for made in batch]
    assert sum(spreads) / len(spreads) < (max(prompts) - min(prompts)) / 4


def test_the_learning_rate_rises_then_falls_to_its_floor():
    rates = [schedule(step, 300) for step in range(300)]
    assert rates[0] < 0.05 and max(rates) > 0.9
    assert rates.index(max(rates)) in range(25, 31)
    assert rates[-1] == pytest.approx(0.05, abs=0.001)
