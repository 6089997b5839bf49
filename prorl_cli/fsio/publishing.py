"""Publishing: a name appears with all of its bytes behind it, or not at all.

A unique temporary name in the same folder, write, fsync, then rename (the newest wins) or link (the first wins), then
fsync of the folder. What a killed writer leaves is a `.tmp-*` that `sweep` removes. Called by whoever leaves a whole
file or folder in a run directory.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

from prorl_cli.fsio.append import write_all
from prorl_cli.fsio.reading import names, read
from prorl_cli.fsio.trouble import reported

TEMPORARY = ".tmp-"
"""Prefix of names that are nobody's yet, or nobody's any more."""

_NOT_A_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What filesystems that need no fsync of a folder answer to one."""


def publish(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Make `data` the whole content of `path`, replacing what was there. Without `durable` it may be lost in a power
    cut, never torn. `RunDirError` when the filesystem refuses; then nothing has changed."""
    with reported(path):
        temporary = _write_temporary(path.parent, data, durable)
        try:
            _rename(temporary, path, data)
        except OSError:
            _discard(temporary)
            raise
        if durable:
            fsync_folder(path.parent)


def publish_exclusive(path: Path, data: bytes) -> bool:
    """Make `data` the content of `path` if nobody has published there. False: somebody else has, read theirs."""
    with reported(path):
        temporary = _write_temporary(path.parent, data, True)
        try:
            won = _link(temporary, path)
        finally:
            _discard(temporary)
        fsync_folder(path.parent)
        return won


def temporary_folder(parent: Path) -> Path:
    """A new empty folder in `parent`, to be filled for `publish_folder`."""
    path = temporary_name(parent)
    with reported(path):
        os.mkdir(path)
    return path


def publish_folder(temporary: Path, final: Path) -> bool:
    """Make everything in `temporary` durable and call it `final`. False: `final` is there already, and `temporary` has
    been removed."""
    with reported(final):
        if final.name in names(final.parent):
            remove_folder(temporary)
            return False
        fsync_tree(temporary)
        try:
            os.rename(temporary, final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            remove_folder(temporary)
            return False
        fsync_folder(final.parent)
        return True


def make_folder(path: Path) -> bool:
    """Make `path` and its missing parents, durably. False: it was there."""
    with reported(path):
        missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
        for folder in reversed(missing[1:]):
            _make_one(folder)
        return _make_one(path)


def remove_folder(path: Path) -> None:
    """Take a folder out of sight at once, then delete it; what another node still holds open is left for `sweep`."""
    hidden = temporary_name(path.parent)
    with reported(path, "remove"):
        try:
            os.rename(path, hidden)
        except FileNotFoundError:
            return
        shutil.rmtree(hidden, ignore_errors=True)


def fsync_folder(path: Path) -> None:
    """Make the names in `path` durable."""
    with reported(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NOT_A_FOLDER_SYNC:
                raise
        finally:
            os.close(fd)


def fsync_tree(top: Path) -> None:
    """Make everything in `top` durable that this node wrote."""
    for folder, _, files in os.walk(top, topdown=False):
        for name in files:
            fd = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        fsync_folder(Path(folder))


def sweep(folder: Path, older_than_s: float) -> list[Path]:
    """Remove the temporary files and folders in `folder` that nothing has written to for `older_than_s` seconds of the
    filesystem's own clock; returns them."""
    left = [folder / name for name in names(folder) if name.startswith(TEMPORARY)]
    if not left:
        return []
    now = clock(folder)
    found = [path for path in left if now - last_written(path) > older_than_s]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            _discard(path)
    return found


def temporary_name(parent: Path) -> Path:
    """A name in `parent` that is nobody's; what is left under it `sweep` removes."""
    return parent / f"{TEMPORARY}{secrets.token_hex(8)}"


def clock(folder: Path) -> float:
    """Now, by the clock of the filesystem that stamps what is in `folder`. Raises `OSError`."""
    path = _write_temporary(folder, b"", False)
    try:
        return os.stat(path).st_mtime
    finally:
        _discard(path)


def last_written(path: Path) -> float:
    """When anything at or under `path` was last written; now-ish (infinity) when it vanishes meanwhile."""
    try:
        times = [os.lstat(path).st_mtime]
        for folder, _, files in os.walk(path):
            times += [os.lstat(os.path.join(folder, name)).st_mtime for name in (".", *files)]
    except FileNotFoundError:
        return float("inf")
    return max(times)


def _write_temporary(parent: Path, data: bytes, durable: bool) -> Path:
    path = temporary_name(parent)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        _discard(path)
        raise
    return path


def _rename(temporary: Path, path: Path, data: bytes) -> None:
    try:
        os.rename(temporary, path)
    except FileNotFoundError:
        # NFS repeats a rename whose answer was lost; the repeat finds nothing to rename.
        if read(path) != data:
            raise


def _link(temporary: Path, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a link whose answer was lost; then the name that exists is our own.
        return os.stat(temporary).st_nlink > 1
    return True


def _discard(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _make_one(path: Path) -> bool:
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    fsync_folder(path.parent)
    return True
