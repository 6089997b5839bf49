"""What a full or read-only filesystem does to the image cache; run inside a mount namespace of its own.

unshare -Urm python -m tests.images_refused FOLDER PROGRAM
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_cli.errors import UserError
from prorl_cli.images import Store, near
from prorl_cli.images.program import Program
from prorl_cli.sandbox.flavour import Flavour
from tests.images_kit import make_definition
from tests.refused import fill, mount


def full_disk(folder, program):
    root = folder / "full"
    root.mkdir()
    mount(root, "size=256k")
    store = Store(root / "cache")
    first = store.build(make_definition(folder, "first"), "scratch", program=program)
    fill(root)
    with pytest.raises(UserError, match="cannot be written: No space left on device: free space there"):
        store.build(make_definition(folder, "second"), "scratch", program=program)
    assert store.images() == [first]
    assert not [name for name in os.listdir(root / "cache" / "objects") if name.startswith(".tmp-")]
    (root / "filler").unlink()
    assert store.build(make_definition(folder, "second"), "scratch", program=program).name == "second"


def nearly_full_disk(folder, program):
    """The log and the claim fit, the image does not."""
    root = folder / "nearly"
    root.mkdir()
    mount(root, "size=256k")
    os.environ["FAKE_SIZE"] = "400000"
    store = Store(root / "cache")
    with pytest.raises(UserError, match="cannot be written: No space left on device: free space there"):
        store.build(make_definition(folder, "third"), program=program)
    assert os.listdir(root / "cache" / "objects") == []
    assert len(os.listdir(root / "cache" / "logs")) == 1
    os.environ["FAKE_SIZE"] = "0"
    assert store.build(make_definition(folder, "third"), program=program).manifest.number == 2


def read_only(folder, program):
    root = folder / "readonly"
    root.mkdir()
    mount(root, "size=1m")
    store, definition = Store(root / "cache"), make_definition(folder, "third")
    image = store.build(definition, program=program)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root)], check=True)
    assert store.build(definition, program=program) == image == store.find("third")
    assert store.stage(image, folder / "node").read_bytes() == image.path.read_bytes()
    for act in (
        lambda: store.build(make_definition(folder, "fourth"), "scratch", program=program),
        lambda: store.hold(image).__enter__(),
        lambda: store.gc(keep_bytes=0),
    ):
        with pytest.raises(UserError, match="cannot be written: Read-only file system: it is mounted read-only"):
            act()
    assert store.verify(image) == ""
    with near(image.path, folder / "node") as copy:
        assert (copy / "whole").read_bytes() == image.path.read_bytes()


def full_node(folder, program):
    store, root = Store(folder / "roomy"), folder / "node-full"
    root.mkdir()
    mount(root, "size=256k")
    image = store.build(make_definition(folder, "fifth"), program=program)
    fill(root)
    for unpacked in (False, True):
        with pytest.raises(UserError, match=f"fifth cannot be copied to {root}: No space left on device: make room"):
            store.stage(image, root, unpacked=unpacked, program=program)
    (root / "filler").unlink()
    os.environ["FAKE_SAYS"] = "Write on output file failed because No space left on device"
    with pytest.raises(UserError, match=f"fifth cannot be copied to {root}: No space left on device: make room"):
        store.stage(image, root, unpacked=True, program=program)
    assert os.listdir(root) == [".prorl-lock"]


def main(folder, path):
    program = Program(path=path, flavour=Flavour(name="apptainer", version=(1, 4, 5)))
    full_disk(folder, program)
    nearly_full_disk(folder, program)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
    read_only(folder, program)
    full_node(folder, program)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
