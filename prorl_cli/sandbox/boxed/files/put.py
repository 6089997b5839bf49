"""The worker's own tool `_put {"files": [[path, mode, data in base64, at, last], …], "token": str}`.

A file arrives in one piece or in several: pieces are collected under a hidden name beside it, which gets the file's
own with the last one. Refuses to write through a link or over what is no file (`reach`).
"""

from __future__ import annotations

import base64
import os
import stat
from typing import Any

from prorl_cli.sandbox.boxed import reach
from prorl_cli.sandbox.boxed.tools import ToolError


def run(arguments: dict[str, Any]) -> str:
    """Nothing, once all is written."""
    for path, mode, data, at, last in arguments["files"]:
        with reach.parent(path, make=True) as (folder, name):
            reach.replaceable(folder, name, path)
            _write(folder, f".prorl-{arguments['token']}", name, mode if last else None, base64.b64decode(data), at)
    return ""


def _write(folder: int, hidden: str, name: str, mode: int | None, data: bytes, at: int) -> None:
    """With a `mode` the file is complete, and gets its name."""
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (0 if at else os.O_CREAT | os.O_EXCL)
    fd = os.open(hidden, flags, 0o600, dir_fd=folder)
    try:
        _append(fd, data, at)
        if mode is not None:
            os.fchmod(fd, mode)
            os.rename(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(hidden, dir_fd=folder)
        raise
    finally:
        os.close(fd)


def _append(fd: int, data: bytes, at: int) -> None:
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_size != at:
        raise ToolError("somebody else has changed the file that was being written")
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written
