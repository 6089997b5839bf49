"""Checkpoints: everything a restart needs to go on bit for bit, published whole, with digests of every file.

A folder without a sound manifest is not a checkpoint. Checkpoint 0 does not exist: it is weights 000000 with a fresh
optimizer. Called by the learner's walk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool import sealed
from prorl_cli.trajectory import Record

MANIFEST = "MANIFEST.json"


class Reference(Record):
    """Which published weights the reference policy is: it is always loaded from their folder, never from a state."""

    version: int = 0
    lineage: str = ""


class Progress(Record):
    """Where the learner stands: `position` is the last one done, `resets` those whose step reset the reference."""

    position: int = 0
    reference: Reference = Reference()
    resets: tuple[int, ...] = ()


class CheckpointManifest(Record):
    """What a checkpoint holds: the progress, and SHA-256 (hex) of each file of the trainer's state."""

    progress: Progress
    files: dict[str, str]


def save_checkpoint(run: RunDir, progress: Progress, save: Callable[[Path], None]) -> bool:
    """Publish checkpoint `progress.position`; `save` fills an empty folder. False: it was there already."""
    temporary = fsio.temporary_folder(run.checkpoints)
    try:
        with fsio.reported(temporary):
            save(temporary)
        manifest = CheckpointManifest(progress=progress, files=_digests(temporary))
        fsio.publish(temporary / MANIFEST, sealed.seal(manifest))
    except BaseException:
        fsio.remove_folder(temporary)
        raise
    return fsio.publish_folder(temporary, run.checkpoint(progress.position))


def read_checkpoint(folder: Path) -> Progress:
    """The progress of a checkpoint all of whose bytes are sound; `CorruptRecord` says what is not."""
    manifest = _manifest(folder)
    found = _digests(folder)
    odd = sorted(name for name, digest in manifest.files.items() if found.get(name) != digest)
    if odd:
        raise CorruptRecord(f"{folder}: missing or changed: {', '.join(odd)}")
    return manifest.progress


def references(run: RunDir) -> set[int]:
    """Weight versions that kept checkpoints need: their own and their references'; a damaged one needs only its own."""
    found = set()
    for step in run.checkpoint_steps():
        found.add(step)
        try:
            found.add(_manifest(run.checkpoint(step)).progress.reference.version)
        except CorruptRecord:
            continue
    return found


def collect_checkpoints(run: RunDir, keep: set[int]) -> list[int]:
    """Delete all checkpoints but `keep`; returns those that went."""
    gone = [step for step in run.checkpoint_steps() if step not in keep]
    for step in gone:
        fsio.remove_folder(run.checkpoint(step))
    return gone


def checkpoints_to_keep(steps: Iterable[int], keep: int, restores: dict[int, int]) -> set[int]:
    """The newest `keep`, and every target of a `restore` that a replay from one of those crosses.

    `restores` maps positions of restores to the checkpoints they go back to.
    """
    newest = set(sorted(steps)[-keep:])
    crossed = {target for position, target in restores.items() if newest and position > min(newest)}
    return newest | crossed


def _manifest(folder: Path) -> CheckpointManifest:
    manifest = sealed.load(folder / MANIFEST, CheckpointManifest)
    if manifest is None:
        raise CorruptRecord(f"{folder}: incomplete: it has no {MANIFEST}")
    return manifest


def _digests(folder: Path) -> dict[str, str]:
    """Of every file, in subfolders too: each rank may leave its own."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / MANIFEST)
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
