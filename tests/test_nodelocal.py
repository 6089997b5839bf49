"""Private folders on a node's disk: what a killed owner leaves goes, what a living one has stays."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from prorl_cli import nodelocal

HOLDER = (
    "import sys, time, pathlib\nfrom prorl_cli import nodelocal\n"
    "print(nodelocal.make(pathlib.Path(sys.argv[1]), 'x-').folder, flush=True)\ntime.sleep(60)"
)


def holder(base):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, base], stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_stays_while_its_owner_lives(tmp_path):
    process, folder = holder(tmp_path)
    with process:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        nodelocal.sweep(tmp_path, "x-")
        assert folder.is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    nodelocal.sweep(tmp_path, "y-")
    assert folder.is_dir(), "it is not one of those that were asked for"
    nodelocal.sweep(tmp_path, "x-")
    assert os.listdir(tmp_path) == []


def test_a_lock_that_was_handed_on_holds_past_its_first_owner(tmp_path):
    made = nodelocal.make(tmp_path, "x-")
    with subprocess.Popen(["sleep", "60"], pass_fds=[made.lock]) as heir:
        os.close(made.lock)
        nodelocal.sweep(tmp_path, "x-")
        assert made.folder.is_dir()
        heir.kill()
    nodelocal.sweep(tmp_path, "x-")
    assert not made.folder.exists()


def test_a_folder_swept_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    flock = nodelocal.fcntl.flock

    def swept_first(lock, how):
        monkeypatch.setattr(nodelocal.fcntl, "flock", flock)
        nodelocal.sweep(tmp_path, "x-")
        flock(lock, how)

    monkeypatch.setattr(nodelocal.fcntl, "flock", swept_first)
    assert nodelocal.make(tmp_path, "x-").folder.is_dir()
    assert len(os.listdir(tmp_path)) == 1


def test_what_its_owner_closed_to_himself_goes_too_and_nothing_behind_a_link(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    kept.joinpath("note").write_text("x")
    kept.chmod(0o500)
    folder = tmp_path / "x-1"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("x")
    (folder / "a" / "link").symlink_to(kept)
    for path in (folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    nodelocal.remove(folder)
    assert os.listdir(tmp_path) == ["kept"] and os.listdir(kept) == ["note"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o500


def test_a_folder_of_any_depth_goes_whatever_its_modes(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    bottom = os.open(top, os.O_RDONLY)
    for level in range(1500):
        os.mkdir("a-name-long-enough-for-a-path-of-many-kilobytes", dir_fd=bottom)
        below = os.open("a-name-long-enough-for-a-path-of-many-kilobytes", os.O_RDONLY, dir_fd=bottom)
        os.close(os.open("file", os.O_CREAT, dir_fd=below))
        os.fchmod(bottom, 0o500 if level % 3 else 0o700)
        os.close(bottom)
        bottom = below
    os.close(bottom)
    nodelocal.remove(top)
    assert os.listdir(tmp_path) == []
