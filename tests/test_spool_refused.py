"""A filesystem that refuses: one clear `RunDirError`, nothing half-written, and it goes on once there is room."""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from prorl_cli import fsio
from prorl_cli.errors import RunDirError
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader, LogWriter
from prorl_cli.spool.members import claim_attempt
from tests.killing import in_child

NOBODY = 65534


def namespace():
    """The prefix that gives a command a mount namespace of its own; skips where the kernel grants none."""
    for prefix in (["unshare", "-Urm"], ["unshare", "-m"]):
        if shutil.which("unshare") and not subprocess.run([*prefix, "true"], capture_output=True).returncode:
            return prefix
    pytest.skip("needs a mount namespace: unprivileged user namespaces (sysctl user.max_user_namespaces) or root")


def test_a_full_disk_and_a_read_only_one_are_one_clear_error_with_nothing_half_written(tmp_path):
    command = [*namespace(), sys.executable, "-m", "tests.refused", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr


def limited(folder):
    """The largest file that this process may write is 4 KiB."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = LogWriter(folder / "log", facts_size=0)
    writer.append(b"a" * 100)
    writer.commit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    for act in (fsio.publish, fsio.publish_exclusive):
        with pytest.raises(RunDirError, match=r"file.*ulimit -f"):
            act(folder / "file", b"x" * 10_000)
    writer.append(b"b" * 9_000)
    for _ in range(2):
        with pytest.raises(RunDirError, match=r"log.*ulimit -f"):
            writer.commit()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    writer.close()


def test_a_file_size_limit_tears_a_record_and_the_next_commit_writes_it_whole(tmp_path):
    in_child(limited, tmp_path)
    assert fsio.names(tmp_path) == ["log"]
    reader = LogReader(tmp_path / "log", 0)
    assert [reader.read(row) for row in reader.poll()] == [b"a" * 100, b"b" * 9_000]


def unprivileged(folder):
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    run = RunDir(folder)
    for act in (
        lambda: fsio.publish(folder / "file", b"x"),
        lambda: fsio.publish_exclusive(folder / "file", b"x"),
        lambda: fsio.make_folder(folder / "folder"),
        lambda: claim_attempt(run, {}),
        lambda: LogWriter(folder / "log", facts_size=0),
    ):
        with pytest.raises(RunDirError, match=rf"{folder}.*Permission denied"):
            act()


def test_a_folder_that_may_not_be_written_is_one_clear_error_to_an_unprivileged_user():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        in_child(unprivileged, Path(folder))
        assert fsio.names(Path(folder)) == []
        Path(folder).chmod(0o700)
