"""What a vLLM engine is started with and from, as far as no vLLM is needed."""

import importlib.util
import json
import os
import socket
import stat
from pathlib import Path

import pytest

from prorl_cli.engine import staging
from prorl_cli.engine.gate import SETTINGS, GateSettings
from prorl_cli.engine.staging import forget_others, read_shape, scratch, stage
from prorl_cli.engine.swap import Unproved
from prorl_cli.engine.vllm_server import Setting, command, environment, reserve, write_gate
from prorl_cli.errors import UserError
from prorl_cli.recipe.schema import Engine
from prorl_cli.spool.canary import CANARY
from tests.engine_kit import publish, tiny_model
from tests.run_parts import Processes, make_run


@pytest.fixture
def setting(tmp_path):
    return Setting(
        host="10.0.0.7", port=4321, certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key",
        weights=tmp_path / "weights", scratch=tmp_path, max_model_len=400,
    )  # fmt: skip


def test_an_environment_without_vllm_is_said_and_not_tried_again(tmp_path):
    if importlib.util.find_spec("vllm"):
        pytest.skip("this environment has vLLM")
    processes = Processes(make_run(tmp_path / "run", engine={"kind": "vllm"}))
    engine = processes.start("-m", "prorl_cli.engine")
    assert engine.wait(60) == UserError.exit_code
    assert "pip install vllm" in engine.log.read_text() and "Traceback" not in engine.log.read_text()


def test_the_sites_own_options_come_first_so_that_they_cannot_undo_the_runs(setting):
    engine = Engine(kind="vllm", vllm_args=("--port", "1", "--logprobs-mode=raw_logprobs"), enforce_eager=True)
    words = command(engine, setting)
    assert words.index("--port") < words.index("--middleware") < len(words) - 1 - words[::-1].index("--enforce-eager")
    last = {word: words[len(words) - words[::-1].index(word)] for word in ("--port", "--logprobs-mode", "--dtype")}
    assert last == {"--port": "4321", "--logprobs-mode": "processed_logprobs", "--dtype": "auto"}
    assert "--enforce-eager" not in command(Engine(kind="vllm"), setting)


def test_only_a_build_for_cpus_is_kept_from_cutting_prompts(setting):
    assert "--no-enable-chunked-prefill" in command(Engine(kind="vllm"), setting, on_cpus=True)
    assert "--no-enable-chunked-prefill" not in command(Engine(kind="vllm"), setting)


def test_what_a_server_makes_goes_into_its_scratch_folder_and_it_asks_nobody_outside(setting):
    made = environment(setting, {"PATH": "/bin", "TMPDIR": "/elsewhere", "VLLM_SERVER_DEV_MODE": "0"})
    assert made["PATH"] == "/bin" and made["TMPDIR"] == made["VLLM_RPC_BASE_PATH"] == str(setting.scratch)
    assert made["VLLM_SERVER_DEV_MODE"] == made["HF_HUB_OFFLINE"] == made["VLLM_NO_USAGE_STATS"] == "1"
    assert made[SETTINGS] == str(setting.gate_file)


def test_the_tokens_are_in_a_file_that_only_this_user_reads(setting):
    write_gate(setting, GateSettings(data_token="data", admin_token="admin", vocab_size=7))
    assert stat.S_IMODE(setting.gate_file.stat().st_mode) == 0o600
    assert json.loads(setting.gate_file.read_text())["vocab_size"] == 7
    assert not any(
        "admin" in word for word in [*command(Engine(kind="vllm"), setting), *environment(setting, {}).values()]
    )


def test_a_reserved_port_is_free_for_the_server_and_for_nobody_who_just_asks_for_one():
    with reserve("127.0.0.1") as held:
        port = held.getsockname()[1]
        with socket.socket() as plain, pytest.raises(OSError, match="in use"):
            plain.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                server.accept()[0].close()


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_a_staged_version_is_the_published_bytes_and_the_others_go(run, tmp_path):
    staged = [stage(tmp_path / "node", *publish(run, version, tiny_model(version))) for version in (0, 1)]
    for version, one in enumerate(staged):
        assert (one.version, one.folder) == (version, tmp_path / "node" / f"{version:06d}")
        for name in ("model.safetensors", "config.json", CANARY):
            assert (one.folder / name).read_bytes() == (run.weight(version) / name).read_bytes()
    forget_others(staged[1])
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["000001"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: flip(folder / "model.safetensors"), "is not the file"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot stage"),
    ],
)
def test_what_is_not_as_its_manifest_says_is_not_staged(run, tmp_path, harm, words):
    folder, manifest = publish(run, 0, tiny_model(0))
    harm(folder)
    with pytest.raises(Unproved, match=words):
        stage(tmp_path / "node", folder, manifest)


def test_weights_without_a_canary_cannot_be_proved_and_are_not_staged(run, tmp_path):
    published = publish(run, 0, tiny_model(0), change=lambda folder: (folder / CANARY).unlink())
    with pytest.raises(Unproved, match="no usable canary"):
        stage(tmp_path / "node", *published)


def test_tied_embeddings_are_refused_in_words_and_a_nested_config_is_read(run, tmp_path):
    folder, _ = publish(run, 0, tiny_model(0, "llama-tied"))
    with pytest.raises(UserError, match="tied"):
        read_shape(folder)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 9}}))
    assert (read_shape(tmp_path).vocab_size, read_shape(tmp_path).max_position_embeddings) == (9, None)


def test_the_scratch_folder_is_private_short_enough_for_sockets_and_gone_afterwards(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    for base in (tmp_path, deep):
        monkeypatch.setattr(staging.tempfile, "gettempdir", lambda base=base: str(base))
        with scratch() as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert len(str(folder)) + staging.SOCKET_NAME <= staging.SOCKET_PATH
        assert not folder.exists()


def test_folders_of_engines_that_were_killed_go_and_those_of_living_ones_stay(tmp_path, monkeypatch):
    base = Path("/tmp") / f"prorl-test-{os.getpid()}"
    (base / f"{staging.PREFIX}old" / "inside").mkdir(parents=True)
    monkeypatch.setattr(staging.tempfile, "gettempdir", lambda: str(base))
    with scratch() as living:
        assert os.listdir(base) == [living.name]
        with scratch():
            assert living.exists()
    base.rmdir()
