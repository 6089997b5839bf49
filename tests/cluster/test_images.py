"""Images made by the real Apptainer for a user without rights: proven, staged, and nothing left of killed builders."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from prorl_cli.images import BuildFailed, Store, find_builder, read_definition
from prorl_cli.images.build import _Work
from prorl_cli.images.program import run_command
from tests.conftest import need
from tests.images import apptainer_works, image
from tests.killing import fork, wait
from tests.test_images_build import until

DEF = """\
Bootstrap: localimage
From: {{ base }}

%files
    hello /opt/hello
    tree /opt/

%post
    cp /opt/hello /opt/copied
    chown -R daemon:daemon /opt/tree
    chmod 700 /opt/tree
    {{ more }}

%environment
    export SAID=yes

%labels
    version 1
"""


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    need("apptainer", apptainer_works())
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def definition_of(folder, more="true"):
    (folder / "hello").write_text("hello")
    (folder / "tree" / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "tree" / "deep" / "file").write_text("deep")
    (folder / "real.def").write_text(DEF)
    return read_definition(folder / "real.def", {"base": str(image("folder")), "more": more})


def said_in(path, script):
    command = run_command(find_builder(), path, "sh", "-c", script)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_image_is_built_proven_run_staged_unpacked_and_removed(tmp_path, scratch):
    store, definition = Store(tmp_path / "cache"), definition_of(tmp_path)
    built = store.build(definition, "lock")
    assert store.build(definition, "lock") == built
    assert store.verify(built) == ""
    assert built.runtime == str(find_builder())
    assert any(line.startswith("python3-minimal=") for line in built.packages["system"])
    assert built.manifest.python.startswith("3.")
    assert said_in(built.path, "cat /opt/copied /opt/tree/deep/file; echo $SAID") == "hellodeepyes\n"
    node = tmp_path / "node"
    folder = store.stage(built, node, unpacked=True)
    assert (folder / "opt" / "copied").read_text() == "hello"
    assert store.stage(built, node, unpacked=True) == folder
    assert said_in(folder, "cat /opt/copied") == "hello"
    shutil.rmtree(node)
    assert list(scratch.iterdir()) == []


def test_a_failed_script_leaves_its_words_and_nothing_else(tmp_path, scratch):
    store = Store(tmp_path / "cache")
    with pytest.raises(BuildFailed) as caught:
        store.build(definition_of(tmp_path, "echo this went wrong >&2; exit 3"))
    log = Path(str(caught.value).rpartition("its log is ")[2])
    assert "this went wrong" in log.read_text()
    assert os.listdir(tmp_path / "cache" / "objects") == []
    assert list(scratch.iterdir()) == []


def test_a_builder_killed_in_its_script_leaves_no_process_and_no_folder_and_another_goes_on(tmp_path, scratch):
    slow = definition_of(tmp_path, "test -e /opt/never || sleep 16180 & wait")
    pid = fork(lambda: Store(tmp_path / "cache").build(slow))
    until(asleep, 120)
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    until(lambda: not asleep(), 20)
    until(lambda: not list(scratch.iterdir()), 20)
    started = time.monotonic()
    again = fork(lambda: Store(tmp_path / "cache").build(slow))
    until(asleep, 120)
    assert time.monotonic() - started < 60, "it waited for a process that this kernel says is dead"
    os.kill(again, signal.SIGTERM)
    wait(again)
    until(lambda: not asleep() and not list(scratch.iterdir()), 20)


def asleep():
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "16180"]]


def test_an_image_with_a_damaged_block_does_not_pass_for_proven(tmp_path, scratch):
    damaged = tmp_path / "damaged.sif"
    shutil.copy(image("sif"), damaged)
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"\xff" * (1 << 16))
    with (tmp_path / "log").open("wb") as log:
        work = _Work(find_builder(), scratch, log, lambda *_: None)
        assert work.proven(image("sif"), "").python
        with pytest.raises(BuildFailed, match="cannot be read"):
            work.proven(damaged, "")
