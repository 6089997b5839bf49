"""Text files whole: read with their line ends and mode, replaced atomically. Refuses what is no regular text file.

Bytes that are no UTF-8 survive an edit elsewhere in the file. Called by `commands`, in a child.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.sandbox.boxed.reach import KINDS
from prorl_cli.sandbox.boxed.tools import ToolError, refused

MAX_BYTES = 4 * 2**20
"""Of a file that is viewed or edited."""

_NO_TEMPORARY = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV}
"""A file may be writable where its folder is not, or be mounted by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """`text` has line feeds only; `crlf` where every line of the file ends in CR LF."""

    path: str
    text: str
    crlf: bool
    data: bytes
    mode: int

    def encoded(self, text: str) -> bytes:
        """`text` as this file would have it."""
        return encoded(text.replace("\r\n", "\n").replace("\n", "\r\n") if self.crlf else text)


def encoded(text: str) -> bytes:
    """Raises `ToolError` for a text that `read` would not take for one."""
    if "\0" in text:
        raise ToolError("a NUL character would make it a binary file")
    return text.encode(errors="surrogateescape" if _round_trips(text) else "replace")


def _round_trips(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" and not "\udc80" <= character <= "\udcff" for character in text)


def read(path: str) -> Text:
    """A text file. Raises `ToolError`."""
    with refused(path):
        data, mode = _contents(path)
    if b"\0" in data:
        raise ToolError(f"{path} is binary (it has NUL bytes)")
    crlf = b"\r\n" in data and data.count(b"\n") == data.count(b"\r\n")
    text = data.decode(errors="surrogateescape")
    return Text(path=path, text=text.replace("\r\n", "\n") if crlf else text, crlf=crlf, data=data, mode=mode)


def _contents(path: str) -> tuple[bytes, int]:
    if not stat.S_ISREG(mode := Path(path).stat().st_mode):
        raise ToolError(f"{path} is {KINDS.get(stat.S_IFMT(mode), 'no file')}, not a file")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ToolError(f"{path} is no file any more")
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            size = max(os.fstat(fd).st_size, len(data))
            raise ToolError(f"{path} is too large: {size} bytes, and at most {MAX_BYTES} can be viewed or edited")
        return data, stat.S_IMODE(mode)


def replace(path: str, data: bytes, mode: int | None) -> None:
    """Give the file at `path`, or where its symbolic links lead, new contents; a new one has `mode` or the usual."""
    if len(data) > MAX_BYTES:
        raise ToolError(f"{path} would be too large: {len(data)} bytes, and at most {MAX_BYTES} can be edited")
    with refused(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not os.access(target, os.W_OK):
            raise ToolError(f"{path} is not writable")
        try:
            _rename_over(target, data, mode)
        except OSError as error:
            if error.errno not in _NO_TEMPORARY or not target.exists():
                raise
            _write_over(target, data)


def _rename_over(target: Path, data: bytes, mode: int | None) -> None:
    fd, name = tempfile.mkstemp(prefix=".prorl-", dir=target.parent)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            os.fchmod(fd, 0o666 & ~_umask() if mode is None else mode)
        Path(name).rename(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _write_over(target: Path, data: bytes) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "wb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ToolError(f"{target} is no file any more")
        _make_room(fd, len(data))
        file.write(data)
        file.truncate(len(data))


def _make_room(fd: int, size: int) -> None:
    """So that a full disk costs nothing of what the file holds. Raises `OSError`."""
    before = os.fstat(fd).st_size
    try:
        if size > before:
            os.posix_fallocate(fd, before, size - before)
    except OSError:
        os.ftruncate(fd, before)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
