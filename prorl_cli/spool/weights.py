"""Weights: one complete HF folder a version, published whole, with the digests that prove it.

A version that is there is never touched again; a replay that differs opens a new lineage beside it. Called by the
learner and warmstart (publish), engines (read, verify) and retention (collect).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool import sealed
from prorl_cli.spool.log import Finding, Kind
from prorl_cli.trajectory import Record

MANIFEST = "MANIFEST.json"
"""Written last into a weights folder: its presence means that the rest is complete."""


class FileDigest(Record):
    """Size in bytes and SHA-256 (hex) of one file."""

    size: int
    sha256: str


class WeightManifest(Record):
    """What a weights folder holds: every file, and the SHA-256 of every tensor's raw little-endian bytes."""

    version: int
    lineage: str
    files: dict[str, FileDigest]
    tensors: dict[str, str]
    written_by: str


def publish_weights(
    run: RunDir,
    version: int,
    write: Callable[[Path], dict[str, str]],
    *,
    lineage: str = "",
    written_by: str = "",
) -> WeightManifest:
    """Publish `version`: `write` fills a temporary folder with a complete HF folder and returns the tensors' digests.
    When the version is there already, nothing is written and its manifest is returned."""
    final = run.weight(version, lineage)
    if final.name in fsio.names(final.parent):
        return _manifest(final)
    temporary = fsio.temporary_folder(final.parent)
    try:
        with fsio.reported(temporary):
            tensors = write(temporary)
        manifest = WeightManifest(
            version=version, lineage=lineage, files=_digests(temporary), tensors=tensors, written_by=written_by
        )
        fsio.publish(temporary / MANIFEST, sealed.seal(manifest))
    except BaseException:
        fsio.remove_folder(temporary)
        raise
    return manifest if fsio.publish_folder(temporary, final) else _manifest(final)


def read_weights(run: RunDir, version: int) -> tuple[Path, WeightManifest] | None:
    """Folder and manifest of `version` in its newest lineage, None before it is published; `CorruptRecord` when a file
    is missing or has another size."""
    lineage = run.weight_folders().get(version)
    if lineage is None:
        return None
    folder = run.weight(version, lineage)
    manifest = _manifest(folder)
    for name, digest in manifest.files.items():
        finding = _size_differs(folder / name, digest.size)
        if finding is not None:
            raise CorruptRecord(str(finding))
    return folder, manifest


def latest_weights(run: RunDir) -> int:
    """The newest published version; -1 when there is none."""
    return max(run.weight_folders(), default=-1)


def verify_weights(folder: Path) -> list[str]:
    """Everything in a weights folder that differs from its manifest, in words; reads every byte."""
    return [str(finding) for finding in scan_weights(folder)]


def scan_weights(folder: Path) -> Iterator[Finding]:
    """As `verify_weights`, with file and offset."""
    problem = sealed.damage(fsio.read(folder / MANIFEST) or b"")
    if problem is not None:
        yield Finding(folder / MANIFEST, *problem)
        return
    for name, digest in _manifest(folder).files.items():
        finding = _size_differs(folder / name, digest.size)
        if finding is None and _digest(folder / name) != digest:
            finding = Finding(folder / name, 0, "corrupt", "its SHA-256 differs from the manifest's")
        if finding is not None:
            yield finding


def collect_weights(run: RunDir, keep: set[int]) -> list[int]:
    """Delete all versions but `keep`, in every lineage; returns the versions that went."""
    gone = []
    for name in fsio.names(run.weights):
        number = name.split(".")[0]
        if number.isdigit() and int(number) not in keep:
            fsio.remove_folder(run.weights / name)
            gone.append(int(number))
    return sorted(set(gone))


def _manifest(folder: Path) -> WeightManifest:
    manifest = sealed.load(folder / MANIFEST, WeightManifest)
    if manifest is None:
        raise CorruptRecord(f"{folder / MANIFEST}: offset 0: truncated: the manifest is missing")
    return manifest


def _digests(folder: Path) -> dict[str, FileDigest]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest(path: Path) -> FileDigest:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(size=file.tell(), sha256=digest)


def _size_differs(path: Path, size: int) -> Finding | None:
    with fsio.reading(path) as file:
        if file is None:
            return Finding(path, 0, "truncated", "the file is missing")
        if file.size == size:
            return None
        kind: Kind = "truncated" if file.size < size else "corrupt"
        return Finding(path, min(file.size, size), kind, f"{file.size} bytes instead of {size}")
