"""A copy of what a box has written, for another to begin with: files, links, modes, and the overlay's own marks.

Files share their blocks where the filesystem can. Refuses to follow a link, for the policy made them; leaves out
sockets. Called where a new box begins, by `rooted` and `launched`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat

_AT_ONCE = 1 << 30


def clone(source: str, target: str) -> None:
    """The folder `source` as `target`, which must not be there. Raises `OSError`."""
    try:
        _folder(source, target, {})
    except RecursionError:
        raise OSError(errno.ELOOP, f"its folders are too deep to be copied: {source}") from None


def _folder(source: str, target: str, linked: dict[tuple[int, int], str]) -> None:
    os.mkdir(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            _entry(entry, f"{target}/{entry.name}", linked)
    shutil.copystat(source, target, follow_symlinks=False)


def _entry(entry: os.DirEntry[str], target: str, linked: dict[tuple[int, int], str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        _folder(entry.path, target, linked)
        return
    name = (found.st_dev, found.st_ino)
    if name in linked:
        os.link(linked[name], target)
        return
    if found.st_nlink > 1:
        linked[name] = target
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(entry.path), target)
    elif stat.S_ISREG(found.st_mode):
        _file(entry.path, target)
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        os.mknod(target, stat.S_IFCHR, 0)  # how an overlay says that something was removed
    elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(target)
    else:
        return
    shutil.copystat(entry.path, target, follow_symlinks=False)


def _file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while os.copy_file_range(reader, writer, _AT_ONCE):
                pass
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def ensure_folder(base: str, path: str) -> None:
    """`base`/`path`, no part of which is a link or a file afterwards."""
    folder = base
    for part in path.strip("/").split("/"):
        folder = f"{folder}/{part}"
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(folder).st_mode):
                continue
            os.unlink(folder)
        os.mkdir(folder, 0o755)
