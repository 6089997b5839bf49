"""Copies of an image on a node's own disk, packed or unpacked, made once a node however many workers ask.

The folder is the node's own, so the kernel's locks hold there, and end with their processes: one for whoever changes
the folder, the program that unpacks included, and one on each copy that a worker uses. Refuses to leave a copy whose
bytes are not the image's. Called by `Store.stage` and `worker`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_cli import nodelocal
from prorl_cli.errors import UserError
from prorl_cli.images import guard
from prorl_cli.images.manifest import Image, object_name
from prorl_cli.images.program import Program, environment, find_builder, unpack_command
from prorl_cli.images.shelf import copy_hashed, intact

KEPT = 8
"""Copies that a worker leaves on its node's disk for later runs, its own included, besides those in use."""
STALE_S = 5 * 86400.0
"""A copy that nobody used for so long is none: what tidies temporary folders may have taken files out of it."""
_COPY, _PARTIAL, _LOCK = "sha256-", ".prorl-partial-", ".prorl-lock"
_OF_THE_FOLDER = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
_FULL = re.compile("no space left on device|disk quota exceeded", re.IGNORECASE)


def staged(image: Image, folder: Path) -> Path:
    """The SIF file in `folder`, copied unless it is there and whole. Raises `UserError`."""
    with _alone(image, folder):
        final = folder / object_name(image.digest)
        if not intact(final, image.manifest):
            with _scratch(folder) as scratch:
                _copied(image, scratch).rename(final)
        return final


def unpacked(image: Image, folder: Path, program: Program | None = None) -> Path:
    """The image as a folder in `folder`. Raises `UserError`."""
    with _alone(image, folder) as lock:
        return _unpacked(image, folder, program, lock)


@contextmanager
def used(image: Image, folder: Path, program: Program | None = None) -> Iterator[Path]:
    """The same, of a worker: the copy stays while the block lasts, and others make room for it. Raises `UserError`."""
    with _alone(image, folder) as lock:
        _make_room(folder, _place(image, folder))
        copy = _unpacked(image, folder, program, lock)
        use = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(use, fcntl.LOCK_SH)
        os.utime(copy)
    try:
        yield copy
    finally:
        os.utime(use)
        os.close(use)


@contextmanager
def _alone(image: Image, folder: Path) -> Iterator[int]:
    """Nobody else changes the folder until every copy of the descriptor is closed, and nobody left anything there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            nodelocal.sweep(folder, _PARTIAL)
            yield lock
        finally:
            os.close(lock)
    except UserError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _OF_THE_FOLDER:
            why += ": make room there, or say another folder (a worker's is below TMPDIR)"
        raise UserError(f"the image {image.name} cannot be copied to {folder}: {why}") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    private = nodelocal.make(folder, _PARTIAL)
    try:
        yield private.folder
    finally:
        nodelocal.remove(private.folder)
        os.close(private.lock)


def _place(image: Image, folder: Path) -> Path:
    return folder / f"{_COPY}{image.digest}"


def _make_room(folder: Path, wanted: Path) -> None:
    """Of the copies that nobody uses the stale ones go, and the longest unused until one more makes `KEPT`."""
    used_at = {copy: copy.stat().st_mtime for copy in folder.glob(f"{_COPY}*") if copy.is_dir()}
    stale = {copy for copy, at in used_at.items() if time.time() - at > STALE_S}
    too_many = sorted(used_at.keys() - {wanted}, key=used_at.__getitem__, reverse=True)[KEPT - 1 :]
    for copy in nodelocal.abandoned(folder, _COPY):
        if copy in stale.union(too_many):
            hidden = copy.with_name(f"{_PARTIAL}{os.urandom(4).hex()}")  # half a copy must not pass for one
            copy.rename(hidden)
            nodelocal.remove(hidden)


def _copied(image: Image, scratch: Path) -> Path:
    copy = scratch / object_name(image.digest)
    with image.path.open("rb") as source, copy.open("xb") as target:
        digest = copy_hashed(source, target)
    if digest != image.digest:
        raise UserError(f"{image.path} is damaged: `prorl cache build` makes it anew")
    os.utime(copy, ns=(image.manifest.mtime_ns, image.manifest.mtime_ns))
    copy.chmod(0o444)
    return copy


def _unpacked(image: Image, folder: Path, program: Program | None, lock: int) -> Path:
    final = _place(image, folder)
    if not final.is_dir():
        with _scratch(folder) as scratch:
            root = scratch / "root"
            _unpack(_copied(image, scratch), root, program or find_builder(), lock)
            root.chmod(root.stat().st_mode | 0o700)  # who moves a folder changes what is its parent
            nodelocal.settle(lock)  # a copy is known by its name alone
            root.rename(final)
    return final


def _unpack(packed: Path, root: Path, program: Program, lock: int) -> None:
    """A worker that is killed meanwhile takes the program with it, and its lock is not free before."""
    command = unpack_command(program, packed, root)
    env = environment(program, os.environ, packed.parent)
    with guard.guarded(command, packed.parent, env, held=[lock]) as process:
        assert process.stdout
        said = process.stdout.read().decode(errors="replace").strip()
        code = process.wait()
    if code and _FULL.search(said):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if code:
        raise UserError(f"{program} cannot unpack {packed.name}: {said[-300:]}")
