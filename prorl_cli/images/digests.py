"""SHA-256 of files and folders: what they hold and may do, never when or where they were written.

A large file that was hashed is not read again by this process while its (device, inode, size, mtime, ctime) stay; a
small one is, for inodes are given anew and an unpacked archive's mtimes are all the same. Refuses devices among what
is copied, and a folder that leads into itself. Called wherever bytes must be proven.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_cli.errors import UserError

CHUNK = 1 << 20
_Identity = tuple[int, int, int, int, int]
_known: dict[_Identity, str] = {}


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A file of a tree that the builder copies: links are followed, as its `cp -L` does."""

    path: str
    mode: int
    digest: str


def canonical(value: Any) -> str:
    """SHA-256 (hex) of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 (hex) of a file. Raises `OSError`."""
    with path.open("rb", buffering=0) as file:
        before = _identity(os.fstat(file.fileno()))
        digest = _known.get(before) or hashlib.file_digest(file, "sha256").hexdigest()
        if _identity(os.fstat(file.fileno())) != before:
            raise UserError(f"{path} changes while it is read")
        _remember(before, digest)
        return digest


def hash_again(path: Path) -> str:
    """SHA-256 (hex) of a file, read whatever is known of it. Raises `OSError`."""
    with path.open("rb", buffering=0) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        _remember(_identity(os.fstat(file.fileno())), digest)
    return digest


def copied_tree(top: Path) -> tuple[Entry, ...]:
    """Everything at or under `top`, named from its last component on, links followed. Raises `OSError`, `UserError`."""
    return tuple(sorted(_followed(top, top.name, ())))


def folder_digest(top: Path) -> str:
    """SHA-256 (hex) of an unpacked image: names, kinds, rights, links as links, bytes. Raises `OSError`."""
    return canonical(sorted(_kept(top, "")))


def _followed(path: Path, name: str, above: tuple[tuple[int, int], ...]) -> Iterator[Entry]:
    facts = path.stat()
    if stat.S_ISREG(facts.st_mode):
        yield Entry(name, stat.S_IMODE(facts.st_mode), file_digest(path))
        return
    if not stat.S_ISDIR(facts.st_mode):
        raise UserError(f"{path} is neither a file nor a folder")
    here = (facts.st_dev, facts.st_ino)
    if here in above:
        raise UserError(f"{path} leads back into itself")
    yield Entry(f"{name}/", stat.S_IMODE(facts.st_mode), "")
    for entry in os.listdir(path):
        yield from _followed(path / entry, f"{name}/{entry}", (*above, here))


def _kept(folder: Path, prefix: str) -> Iterator[list[str | int]]:
    for entry in os.scandir(folder):
        name = f"{prefix}{entry.name}"
        facts = entry.stat(follow_symlinks=False)
        if entry.is_symlink():
            yield [name, "link", 0, str(Path(entry.path).readlink())]
        elif entry.is_dir(follow_symlinks=False):
            yield [name, "folder", stat.S_IMODE(facts.st_mode), ""]
            yield from _kept(Path(entry.path), f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield [name, "file", stat.S_IMODE(facts.st_mode), file_digest(Path(entry.path))]
        else:
            yield [name, "special", stat.S_IFMT(facts.st_mode), str(facts.st_rdev)]


def _remember(identity: _Identity, digest: str) -> None:
    if identity[2] > CHUNK:
        _known[identity] = digest


def _identity(facts: os.stat_result) -> _Identity:
    return (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
