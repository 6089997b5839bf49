"""Warm start under kills, rivals, damage and a cache that cannot be used."""

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from prorl_cli.spool.weights import read_weights, verify_weights
from prorl_cli.warmstart import cache
from prorl_cli.warmstart.__main__ import start
from tests.warmstart_parts import SMALL, begin, entries, environment, finish, run_of

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1


def weights(run):
    folder, _ = read_weights(run, 0)
    assert verify_weights(folder) == []
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with one entry, and the weights it gives."""
    folder = tmp_path_factory.mktemp("filled")
    run = run_of(folder / "run")
    code, _, errors = finish(begin(run, folder / "cache"))
    assert code == 0, errors
    (entry,) = entries(folder / "cache")
    return entry, weights(run)


@pytest.fixture
def entry(filled, tmp_path, monkeypatch):
    """A copy of that entry in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = cache.cache_root() / filled[0].name
    copy.mkdir(parents=True)
    for file in filled[0].iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def flip_digest(path):
    """Another digest of a tensor: valid JSON, and no file differs."""
    text = path.read_text()
    at = text.index('"lm_head.weight":"') + len('"lm_head.weight":"')
    path.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (flip, "model.safetensors"),
        (flip, "config.json"),
        (flip, cache.DIGESTS),
        (flip_digest, cache.DIGESTS),
        (lambda path: path.unlink(), "tokenizer.json"),
        (lambda path: path.unlink(), cache.DIGESTS),
        (lambda path: os.truncate(path, 100), "model.safetensors"),
        (lambda path: path.write_bytes(b"\xff\xfe"), cache.DIGESTS),
    ],
)
def test_a_damaged_entry_is_made_again(entry, filled, tmp_path, capsys, damage, file):
    damage(entry / file)
    run = run_of(tmp_path / "run")
    start(run.root)
    assert "step 6 of 6" in capsys.readouterr().out
    assert weights(run) == filled[1]
    assert cache.load(entry).files["model.safetensors"] == filled[1]


@pytest.mark.slow
def test_killed_while_training_it_leaves_nothing_and_the_next_one_makes_it(filled, tmp_path):
    run = run_of(tmp_path / "run", warmstart={**SMALL, "steps": 40})
    process = begin(run, tmp_path / "cache")
    assert "training the tiny model" in process.stdout.readline()
    process.kill()
    assert finish(process)[0] == -signal.SIGKILL
    assert os.listdir(run.weights) == []
    assert entries(tmp_path / "cache") == []
    code, output, errors = finish(begin(run, tmp_path / "cache"))
    assert code == 0, errors
    assert "step 40 of 40" in output
    weights(run)


KILL_WHILE_STORING = """
import os, runpy, sys
from prorl_cli import fsio
def publish_folder(temporary, final):
    os.kill(os.getpid(), 9)
fsio.publish_folder = publish_folder
sys.argv[0] = "warmstart"
runpy.run_module("prorl_cli.warmstart", run_name="__main__")
"""


@pytest.mark.slow
def test_killed_while_storing_it_leaves_no_entry_and_its_remains_are_swept(filled, tmp_path, monkeypatch):
    run = run_of(tmp_path / "run")
    command = [sys.executable, "-c", KILL_WHILE_STORING, str(run.root)]
    killed = subprocess.run(command, env=environment(tmp_path / "cache"), capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (left,) = cache.cache_root().iterdir()
    for path in (left, *left.iterdir()):
        os.utime(path, (0, 0))
    start(run.root)
    assert weights(run) == filled[1]
    assert list(cache.cache_root().iterdir()) == entries(tmp_path / "cache") == [cache.cache_root() / filled[0].name]


@pytest.mark.slow
def test_two_builders_at_once_both_succeed(filled, tmp_path):
    run = run_of(tmp_path / "run")
    both = [begin(run, tmp_path / "cache") for _ in range(2)]
    assert [finish(process)[0] for process in both] == [0, 0]
    assert weights(run) == filled[1]
    assert [path.name for path in entries(tmp_path / "cache")] == [filled[0].name]
    assert os.listdir(run.weights) == ["000000"]


def test_an_unusable_cache_is_said_and_done_without(filled, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    run = run_of(tmp_path / "run")
    start(run.root)
    assert "warm start: not cached: " in capsys.readouterr().out
    assert weights(run) == filled[1]


def without_power():
    """Even root must heed permissions from here on."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


def test_a_cache_without_permission_is_said_and_done_without(filled, tmp_path):
    run, folder = run_of(tmp_path / "run"), tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o500)
    code, output, errors = finish(begin(run, folder, preexec_fn=without_power))
    assert code == 0, errors
    assert f"not cached: cannot write {folder}" in output
    assert weights(run) == filled[1]


@pytest.mark.parametrize("asked", ["", "relative/folder"])
def test_without_a_usable_setting_the_cache_is_in_the_home_folder(asked, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", asked)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_root() == tmp_path / ".cache" / "prorl" / "warmstart"
