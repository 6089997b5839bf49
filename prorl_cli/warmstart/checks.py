"""What can be found wrong with a recipe's model without torch. Called by `validate`, `launch` and the room's main."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prorl_cli.recipe.schema import TINY

ONE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes; what the safetensors library allows."""


def check_model(model: str) -> list[str]:
    """Every problem in words; empty for a model that can be trained, and for the built-in one."""
    if model == TINY:
        return []
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return [f"there is no folder {model}: give the folder of a Hugging Face model, or {TINY}"]
    config, problem = _object(folder / "config.json")
    problems = [problem] if problem else _config_problems(folder, config)
    return problems + _tokenizer_problems(folder, config.get("vocab_size")) + _weight_problems(folder)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of an HF folder, from its index where it has one; empty when there are none.
    `ValueError` for an index that names no files."""
    if (folder / ONE_FILE).is_file() or not (folder / INDEX).is_file():
        return [path for path in (folder / ONE_FILE,) if path.is_file()]
    index, problem = _object(folder / INDEX)
    named = index.get("weight_map")
    if problem or not isinstance(named, dict) or not named:
        raise ValueError(problem or f"{folder / INDEX} names no files")
    return [folder / str(name) for name in sorted(set(named.values()))]


def _config_problems(folder: Path, config: dict[str, Any]) -> list[str]:
    where, found = folder / "config.json", []
    architectures = config.get("architectures") or ["none"]
    if not all(str(name).endswith("ForCausalLM") for name in architectures):
        found.append(
            f"{where}: the architecture is {', '.join(map(str, architectures))}: only *ForCausalLM can be trained"
        )
    if type(config.get("vocab_size")) is not int:
        found.append(f"{where} gives no vocab_size")
    if "quantization_config" in config:
        found.append(f"{where}: the weights are quantized: give the unquantized model")
    return found


def _tokenizer_problems(folder: Path, vocab_size: Any) -> list[str]:
    where = folder / "tokenizer.json"
    if not where.is_file():
        return [f"{folder} has no tokenizer.json: save its fast tokenizer there"]
    tokenizer, problem = _object(where)
    if problem:
        return [problem]
    try:
        highest = max(_token_ids(tokenizer))
    except (AttributeError, KeyError, TypeError, ValueError):
        return [f"{where} has no vocabulary"]
    if type(vocab_size) is int and highest >= vocab_size:
        return [
            f"{where}: the tokenizer is larger than the model's vocabulary: its highest id is {highest}, "
            f"config.json has vocab_size {vocab_size}"
        ]
    return []


def _token_ids(tokenizer: dict[str, Any]) -> list[int]:
    vocabulary = tokenizer["model"]["vocab"]
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
    return ids + [token["id"] for token in tokenizer.get("added_tokens", [])]


def _weight_problems(folder: Path) -> list[str]:
    try:
        files = weight_files(folder)
    except ValueError as error:
        return [str(error)]
    if not files:
        return [f"{folder} has no safetensors weights ({ONE_FILE} or {INDEX}): convert the model to safetensors"]
    return [problem for path in files if (problem := _safetensors_problem(path))]


def _safetensors_problem(path: Path) -> str:
    """Whether the file is as long as its header says; empty when it is."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length)) if length <= MAX_HEADER else {}
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            size, wanted = path.stat().st_size, 8 + length + max(ends)
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return f"{path} is no whole safetensors file: its header cannot be read"
    return f"{path} is {size} bytes long instead of {wanted}: copy it again" if size != wanted else ""


def _object(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in a file, or what is wrong with it."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        return {}, f"cannot read {path}: {error.strerror}"
    except (ValueError, RecursionError) as error:
        return {}, f"{path} is not JSON: {error}"
    return (value, "") if isinstance(value, dict) else ({}, f"{path} holds no JSON object")
