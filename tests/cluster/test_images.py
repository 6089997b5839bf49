"""Images made by the real Apptainer for a user without rights: proven, staged, and nothing left of killed builders."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from prorl_cli.images import BuildFailed, Store, read_definition
from prorl_cli.images.build import _Work
from prorl_cli.images.build_log import BuildLog
from prorl_cli.images.program import find_builder, run_command
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
    chmod 555 /opt/tree
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


COMMANDS = ("bash", "cat", "chmod", "chown", "cp", "dash", "env", "find", "grep", "ls", "mkdir", "sh", "sleep", "true")
LIBRARIES = ("ld-linux*", "libc.so*", "libselinux.*", "libacl.*", "libattr.*", "libpcre2-8.*", "libtinfo.*", "libcap.*")
PATIENCE_S = 120


def small_base(folder):
    """A root folder with a shell and little else, from the test image: seconds less for every build."""
    base, whole = folder / "base", image("folder")
    for name in ("usr/bin", "usr/lib64", "etc", "tmp", "proc", "sys", "dev", "root", "opt"):
        (base / name).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64"):
        shutil.copy(whole / link, base / link, follow_symlinks=False)
    wanted = [f"usr/bin/{name}" for name in COMMANDS] + ["etc/passwd", "etc/group", "usr/lib64/*"]
    for path in (path for pattern in wanted for path in whole.glob(pattern)):
        shutil.copy(path, base / path.relative_to(whole), follow_symlinks=False)
    for path in (path for name in LIBRARIES for path in whole.glob(f"usr/lib/*-linux-gnu/{name}")):
        (base / path.parent.relative_to(whole)).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, base / path.relative_to(whole), follow_symlinks=False)
    return base


def definition_of(folder, more="true", base=None):
    (folder / "hello").write_text("hello")
    (folder / "tree" / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "tree" / "deep" / "file").write_text("deep")
    (folder / "real.def").write_text(DEF)
    return read_definition(folder / "real.def", {"base": str(base or image("folder")), "more": more})


def said_in(path, script):
    command = run_command(find_builder(), path, "sh", "-c", script)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_image_is_built_proven_run_staged_unpacked_and_removed(tmp_path, scratch):
    store, definition = Store(tmp_path / "cache"), definition_of(tmp_path, base=small_base(tmp_path))
    built = store.build(definition, "lock")
    assert store.build(definition, "lock") == built
    assert store.verify(built) == ""
    assert built.manifest.runtime == str(find_builder())
    assert (built.manifest.bash[0], built.manifest.python) == ("5", "")
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
        store.build(definition_of(tmp_path, "echo this went wrong >&2; exit 3", small_base(tmp_path)))
    log = Path(str(caught.value).rpartition("its log is ")[2])
    assert "this went wrong" in log.read_text()
    assert os.listdir(tmp_path / "cache" / "objects") == []
    assert list(scratch.iterdir()) == []


def test_a_builder_killed_in_its_script_leaves_no_process_and_no_folder_and_another_goes_on(tmp_path, scratch):
    slow = definition_of(tmp_path, "sleep 16180 & wait", small_base(tmp_path))
    pid = fork(lambda: Store(tmp_path / "cache").build(slow))
    until(asleep, PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    until(lambda: not asleep(), PATIENCE_S)
    until(lambda: not list(scratch.iterdir()), PATIENCE_S)
    quick = Store(tmp_path / "cache", grace_s=100 * PATIENCE_S)
    again = fork(lambda: quick.build(slow))
    until(asleep, PATIENCE_S)  # and does not wait for a process that this kernel says is dead
    os.kill(again, signal.SIGTERM)
    wait(again)
    until(lambda: not asleep() and not list(scratch.iterdir()), PATIENCE_S)


def asleep():
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "16180"]]


def test_an_image_with_a_damaged_block_does_not_pass_for_proven(tmp_path, scratch):
    damaged = tmp_path / "damaged.sif"
    shutil.copy(image("sif"), damaged)
    with damaged.open("r+b") as file:
        file.seek(damaged.stat().st_size // 2)
        file.write(b"\xff" * (1 << 16))
    with (tmp_path / "log").open("w+b") as log:
        work = _Work(find_builder(), scratch, BuildLog(log), lambda *_: None)
        found = work.proven(image("sif"), "")
        assert found.python.startswith("3.")
        assert any(line.startswith("python3-minimal=") for line in found.packages["system"])
        with pytest.raises(BuildFailed, match="cannot be read"):
            work.proven(damaged, "")
