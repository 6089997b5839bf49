"""Copies of an image on a node's own disk, packed or unpacked, made once a node however many workers ask.

The folder is the node's own, so the kernel's lock holds there, and ends with its process. Refuses to leave a copy
whose bytes are not the image's. Called by `Store.stage`.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_cli import nodelocal
from prorl_cli.errors import UserError
from prorl_cli.images.manifest import Image, object_name
from prorl_cli.images.program import Program, environment, unpack_command
from prorl_cli.images.shelf import copy_hashed, intact

_PARTIAL = "partial-"


def staged(image: Image, folder: Path) -> Path:
    """The SIF file in `folder`, copied unless it is there and whole. Raises `UserError`."""
    with _alone(folder, image.digest):
        final = folder / object_name(image.digest)
        if not intact(final, image.manifest):
            _copy(image, final)
        return final


def unpacked(image: Image, folder: Path, program: Program) -> Path:
    """The image as a folder in `folder`. Raises `UserError`."""
    packed = staged(image, folder)
    with _alone(folder, image.digest):
        final = folder / packed.stem
        if not final.is_dir():
            _unpack(packed, final, program)
        return final


@contextmanager
def _alone(folder: Path, digest: str) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"images cannot be copied to {folder}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _copy(image: Image, final: Path) -> None:
    partial = final.with_name(f"{_PARTIAL}{final.name}")
    try:
        partial.unlink(missing_ok=True)
        with image.path.open("rb") as source, partial.open("xb") as target:
            digest = copy_hashed(source, target)
        if digest != image.digest:
            raise UserError(f"{image.path} is damaged: `prorl cache build` makes it anew")
        os.utime(partial, ns=(image.manifest.mtime_ns, image.manifest.mtime_ns))
        partial.chmod(0o444)
        partial.rename(final)
    except OSError as error:
        raise UserError(f"{image.path} cannot be copied to {final.parent}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _unpack(packed: Path, final: Path, program: Program) -> None:
    partial = final.with_name(f"{_PARTIAL}{final.name}")
    nodelocal.remove(partial)
    scratch = nodelocal.make(final.parent, f"{_PARTIAL}scratch-")
    try:
        command = unpack_command(program, packed, partial)
        env = environment(program, os.environ, scratch.folder)
        done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise UserError(f"{program} cannot unpack {packed}: {done.stderr.strip()[-300:]}")
        partial.rename(final)
    finally:
        nodelocal.remove(scratch.folder)
        os.close(scratch.lock)
        nodelocal.remove(partial)
