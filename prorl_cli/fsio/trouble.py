"""What the filesystem refused, in words: `OSError` becomes a `RunDirError` that names the path and the remedy.

Refuses to translate what it has no remedy for. Called by every other file of this room.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prorl_cli.errors import RunDirError

_REMEDIES = {
    errno.ENOSPC: "free space on that filesystem, then `prorl resume` the run",
    errno.EDQUOT: "your quota there is used up: delete something or ask for more, then `prorl resume` the run",
    errno.EFBIG: "raise the file size limit (`ulimit -f`), then `prorl resume` the run",
    errno.EROFS: "that filesystem is mounted read-only: choose a --run-dir on one that can be written",
    errno.EACCES: "you lack the permission: choose another --run-dir, or have its owner change the permissions",
    errno.EPERM: "that filesystem does not allow it (hard links are needed): choose a --run-dir on another one",
    errno.ENOTSUP: "that filesystem does not support it (hard links are needed): choose a --run-dir on another one",
    errno.EIO: "the storage failed: see the node's kernel log, then `prorl resume` the run",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), then `prorl resume` the run",
    errno.ENOENT: "its folder is gone: was the run directory moved or deleted?",
}


@contextmanager
def reported(path: Path, doing: str = "write") -> Iterator[None]:
    """Turn the filesystem's refusals into `RunDirError`; any other `OSError` passes."""
    try:
        yield
    except RunDirError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        raise RunDirError(f"cannot {doing} {path}: {error.strerror}: {remedy}") from error
