"""What a full or read-only filesystem does to the spool; run inside a mount namespace of its own.

unshare -Urm python -m tests.refused FOLDER
"""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_cli import fsio
from prorl_cli.errors import RunDirError
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader, LogWriter, scan
from prorl_cli.spool.members import claim_attempt, current_attempt
from prorl_cli.spool.weights import latest_weights, publish_weights

LARGE = b"x" * 200_000


def mount(folder, *options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], check=True)


def fill(folder):
    """Take the last free bytes of the filesystem."""
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                for _ in itertools.count():
                    file.write(b"f" * size)
            except OSError:
                continue


def full(path):
    return pytest.raises(RunDirError, match=rf"{path}.*No space left on device: free space")


def full_disk(root):
    run = RunDir(root / "run")
    run.create()
    fsio.publish(root / "file", b"old")
    writer = LogWriter(root / "log", facts_size=0)
    writer.append(b"first")
    writer.commit()
    fill(root)
    before = sorted(path for path in root.rglob("*"))
    with full("file"):
        fsio.publish(root / "file", LARGE)
    with full("other"):
        fsio.publish_exclusive(root / "other", LARGE)
    with full("weights"):
        publish_weights(run, 0, write_model)
    writer.append(LARGE[:20_000])
    with full("log"):
        writer.commit()
    with full("log"):
        writer.commit()
    assert fsio.read(root / "file") == b"old"
    assert sorted(path for path in root.rglob("*") if path.suffix != ".seg") == [
        p for p in before if p.suffix != ".seg"
    ]
    assert latest_weights(run) == -1
    reader = LogReader(root / "log", 0)
    assert [reader.read(row) for row in reader.poll()] == [b"first"]
    (root / "filler").unlink()
    writer.close()
    assert [reader.read(row) for row in reader.poll()] == [LARGE[:20_000]]
    assert {finding.kind for finding in scan(root / "log", 0, writer_dead=False)} <= {"truncated"}
    fsio.publish(root / "file", b"new")
    assert fsio.read(root / "file") == b"new"


def write_model(folder):
    (folder / "model.safetensors").write_bytes(LARGE)
    return {}


def read_only(root):
    run = RunDir(root / "run")
    run.create()
    assert claim_attempt(run, {}) == 1
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    for act in (
        lambda: fsio.publish(run.root / "file", b"x"),
        lambda: fsio.publish_exclusive(run.root / "file", b"x"),
        lambda: claim_attempt(run, {}),
        lambda: LogWriter(run.root / "log", facts_size=0),
        lambda: publish_weights(run, 0, write_model),
    ):
        with pytest.raises(RunDirError, match=rf"{run.root}.*Read-only file system: that filesystem is mounted"):
            act()
    assert current_attempt(run) == 1


def main(folder):
    for number, (act, size) in enumerate([(full_disk, "256k"), (read_only, "1m")]):
        root = folder / str(number)
        root.mkdir()
        mount(root, f"size={size}")
        act(root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
