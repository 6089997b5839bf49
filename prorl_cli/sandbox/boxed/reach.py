"""Files by a path that nobody can bend: every folder on the way is opened by itself, and no link is followed.

Refuses symbolic links, `..`, and what is no regular file, in words: the policy may have planted them. A path below
the box's home is walked from there, any other from the root. Called by the worker's own tools (`files`), in a child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from prorl_cli.sandbox.boxed.tools import ToolError, refused

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}
"""What is no file."""


@contextlib.contextmanager
def parent(path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that a path's last part is in, and that part. `make` makes the folders that are not there."""
    home = os.environ["HOME"].rstrip("/")
    absolute = path if path.startswith("/") else f"{home}/{path}"
    start, rest = (home, absolute[len(home) :]) if absolute.startswith(f"{home}/") else ("/", absolute)
    names = [name for name in rest.split("/") if name not in ("", ".")]
    if not names or ".." in names or "\0" in path:
        raise ToolError(f"{path!r} names no file by itself")
    with refused(path):
        folder = os.open(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names[:-1]:
                inner = _enter(folder, name, make)
                os.close(folder)
                folder = inner
            yield folder, names[-1]
        finally:
            os.close(folder)


def _enter(folder: int, name: str, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except (NotADirectoryError, OSError) as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise ToolError(f"{name} on the way is {_kind(folder, name)}, not a folder") from None
        raise


def regular(folder: int, name: str, path: str) -> int:
    """A descriptor to read a regular file that has no other name."""
    if not stat.S_ISREG(_mode(folder, name)):
        raise ToolError(f"{path} is {_kind(folder, name)}, not a file")
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
        os.close(fd)
        raise ToolError(f"{path} has {facts.st_nlink} names (hard links): it may be another's file")
    return fd


def replaceable(folder: int, name: str, path: str) -> None:
    """Refuses to put a file where something else stands."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(_mode(folder, name)):
            raise ToolError(f"{path} is {_kind(folder, name)}, not a file")


def _mode(folder: int, name: str) -> int:
    return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _kind(folder: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return KINDS.get(stat.S_IFMT(_mode(folder, name)), "a file")
    return "gone"
