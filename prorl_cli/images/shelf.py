"""The stored images as files: objects named by their digest, references named by key and number.

An object that lost a byte is never handed out: its size and mtime must be those of its manifest, or its bytes are
hashed again. Refuses to overwrite: a reference's name carries the number of its claim. Called by the rest of the room;
the order of steps is theirs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import RunDirError, UserError
from prorl_cli.images.digests import CHUNK, file_digest
from prorl_cli.images.key import MODES
from prorl_cli.images.manifest import Image, Manifest, object_name

_REFERENCE = re.compile(r"(?P<key>[0-9a-f]{64})\.(?P<number>\d{6})\.json")
_REMEDIES = {
    errno.ENOSPC: "free space there (`prorl cache gc`), or say another folder in PRORL_CACHE",
    errno.EDQUOT: "your quota is used up: `prorl cache gc`, or say another folder in PRORL_CACHE",
    errno.EROFS: "it is mounted read-only: say another folder in PRORL_CACHE",
    errno.EACCES: "you lack the permission: say another folder in PRORL_CACHE",
    errno.EPERM: "it allows no hard links: say another folder in PRORL_CACHE",
    errno.ENOTSUP: "it allows no hard links: say another folder in PRORL_CACHE",
}


class Shelf:
    """The folder of one cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.references = root / "refs"
        self.leases = root / "leases"
        self.logs = root / "logs"
        self.uses = root / "uses"

    def prepare(self) -> None:
        """Make its folders. Raises `UserError`."""
        with self.writing():
            for folder in (self.objects, self.leases, self.logs, self.uses, *(self.references / m for m in MODES)):
                fsio.make_folder(folder)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What the filesystem refuses becomes a `UserError` of this cache."""
        try:
            yield
        except OSError as error:
            cause = error.__cause__ if isinstance(error, RunDirError) else error
            number = cause.errno if isinstance(cause, OSError) else None
            remedy = _REMEDIES.get(number or 0, "say another folder in PRORL_CACHE")
            strerror = os.strerror(number) if number else str(error)
            raise UserError(f"the image cache {self.root} cannot be written: {strerror}: {remedy}") from error

    def manifests(self) -> list[Manifest]:
        """Of every reference; ones that cannot be read are none."""
        found = [
            self._read(self.references / mode / name) for mode in MODES for name in fsio.names(self.references / mode)
        ]
        return [manifest for manifest in found if manifest]

    def of_key(self, key: str) -> Image | None:
        """The image of the highest number of `key` that is whole."""
        names = [
            (match["number"], self.references / mode / name)
            for mode in MODES
            for name in fsio.names(self.references / mode)
            if (match := _REFERENCE.fullmatch(name)) and match["key"] == key
        ]
        for _, path in sorted(names, reverse=True):
            if (manifest := self._read(path)) and (image := self.image(manifest)):
                return image
        return None

    def image(self, manifest: Manifest) -> Image | None:
        """The object of a manifest, if it is there and whole."""
        path = self.object(manifest.digest)
        return Image(path=path, manifest=manifest) if intact(path, manifest) else None

    def object(self, digest: str) -> Path:
        """Where an object lies."""
        return self.objects / object_name(digest)

    def reference(self, manifest: Manifest) -> Path:
        """Where a manifest lies."""
        return self.references / manifest.mode / f"{manifest.key}.{manifest.number:06}.json"

    @contextmanager
    def incoming(self) -> Iterator[tuple[IO[bytes], Path]]:
        """A new file among the objects, gone at the end of the block unless it got a name there."""
        path = fsio.temporary_name(self.objects)
        with self.writing():
            try:
                with path.open("xb") as file:
                    yield file, path
            finally:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def publish(self, path: Path, manifest: Manifest) -> Image:
        """Give a proven file of `incoming` its name, then its reference; returns what the reference then names.

        A whole object of that name stays, and so does a reference of that number.
        """
        with self.writing():
            final = self.object(manifest.digest)
            kept = msgspec.structs.replace(manifest, mtime_ns=_mtime(final))
            if not (kept.mtime_ns and file_is(final, kept.digest)):
                path.chmod(0o444)
                path.rename(final)
                fsio.fsync_folder(self.objects)
                kept = msgspec.structs.replace(manifest, mtime_ns=_mtime(final))
            won = fsio.publish_exclusive(self.reference(kept), msgspec.json.format(msgspec.json.encode(kept)))
        kept = (None if won else self._read(self.reference(kept))) or kept
        return Image(path=self.object(kept.digest), manifest=kept)

    def highest(self, key: str) -> int:
        """The highest number of a reference of `key`, whatever became of its object; 0 for none."""
        names = (_REFERENCE.fullmatch(name) for mode in MODES for name in fsio.names(self.references / mode))
        return max((int(match["number"]) for match in names if match and match["key"] == key), default=0)

    def _read(self, path: Path) -> Manifest | None:
        try:
            return msgspec.json.decode(fsio.read(path) or b"", type=Manifest)
        except msgspec.DecodeError:
            return None


def intact(path: Path, manifest: Manifest) -> bool:
    """Whether a file is the image of `manifest`."""
    with fsio.reading(path) as file:
        if file is None or file.size != manifest.size:
            return False
    return _mtime(path) == manifest.mtime_ns or file_is(path, manifest.digest)


def file_is(path: Path, digest: str) -> bool:
    """Whether its bytes have that digest."""
    try:
        return file_digest(path) == digest
    except (OSError, UserError):
        return False


def copy_hashed(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy to the end, durably; the SHA-256 (hex) of what was copied."""
    sha = hashlib.sha256()
    while chunk := source.read(CHUNK):
        sha.update(chunk)
        target.write(chunk)
    target.flush()
    os.fsync(target.fileno())
    return sha.hexdigest()


def _mtime(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
