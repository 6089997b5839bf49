"""An image and its manifest as one tar file, for clusters that share nothing.

Refuses an archive that holds anything else, and an image whose bytes are not its manifest's. Called by `Store.export`
and `Store.import_`.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import UserError
from prorl_cli.images.check import BadImage, check_header
from prorl_cli.images.manifest import FORMAT, Image, Manifest
from prorl_cli.images.shelf import Shelf, copy_hashed

_MANIFEST, _IMAGE = "manifest.json", "image.sif"
_HEX = re.compile(r"[0-9a-f]{64}")
_LARGEST = 1 << 24
"""Bytes of a manifest: the package lists of large images have some hundred kilobytes."""


def export(image: Image, path: Path) -> None:
    """Write `path`, whole or not at all. Raises `UserError`."""
    partial = fsio.temporary_name(path.parent)
    manifest = msgspec.json.format(msgspec.json.encode(image.manifest))
    head = tarfile.TarInfo(_MANIFEST)
    head.size = len(manifest)
    try:
        with partial.open("xb") as file:
            with tarfile.open(fileobj=file, mode="w:") as archive:
                archive.addfile(head, io.BytesIO(manifest))
                archive.add(image.path, _IMAGE, filter=_nobodys)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        fsio.fsync_folder(path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def bring(shelf: Shelf, path: Path, above: Callable[[str], int]) -> Image:
    """Publish what `path` holds, under a number greater than `above` says of its key. Raises `UserError`."""
    try:
        with tarfile.open(path, "r:") as archive, shelf.incoming() as (file, partial):
            manifest = _manifest(archive, path)
            _bring_image(archive, path, manifest, file)
            check_header(partial)
            return shelf.publish(partial, msgspec.structs.replace(manifest, number=above(manifest.key) + 1))
    except (tarfile.TarError, EOFError, BadImage) as error:
        raise UserError(f"{path} is no image that was exported: {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"there is no {path}") from error


def _manifest(archive: tarfile.TarFile, path: Path) -> Manifest:
    file = _member(archive, path, _MANIFEST)
    try:
        manifest = msgspec.json.decode(file.read(_LARGEST), type=Manifest)
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is no image that was exported: its manifest: {error}") from error
    if manifest.format != FORMAT or not all(map(_HEX.fullmatch, (manifest.key, manifest.digest))):
        raise UserError(f"{path} is of another version of prorl")
    return manifest


def _bring_image(archive: tarfile.TarFile, path: Path, manifest: Manifest, file: IO[bytes]) -> None:
    if copy_hashed(_member(archive, path, _IMAGE), file) != manifest.digest:
        raise UserError(f"{path} is damaged: its image is not the one of its manifest")


def _member(archive: tarfile.TarFile, path: Path, name: str) -> IO[bytes]:
    member = archive.next()
    file = archive.extractfile(member) if member and member.isreg() and member.name == name else None
    if file is None:
        raise UserError(f"{path} is no image that was exported: it should hold {name} here")
    return file


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
