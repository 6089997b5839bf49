"""Removing images, and what killed builders and users left: what to remove is chosen by `gc`.

An image goes in three steps, so that a use that begins meanwhile is seen by one of the two: out of sight, look for
uses again, delete. Refuses to remove what somebody uses. Called by `Store.gc`.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.images.gc import Kept, choose
from prorl_cli.images.manifest import Manifest, object_name
from prorl_cli.images.shelf import TEMPORARY, Shelf
from prorl_cli.images.uses import last_use, silent, stamp, uses

ABANDONED_S = 6 * 3600.0
"""What nobody has written to for this long is a killed process's."""
LOGS_S = 30 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """An object that is gone, and the names it had; `names` is empty for one that no reference named."""

    digest: str
    size: int
    names: tuple[str, ...]


def collect(shelf: Shelf, *, keep_bytes: int | None, keep_s: float | None, dry_run: bool) -> list[Removed]:
    """Remove what `gc.choose` names. Raises `UserError`."""
    manifests = shelf.manifests()
    with shelf.writing():
        now = _clock(shelf)
        there = filter(None, (_kept(shelf, name) for name in _objects(shelf)))
        chosen = choose(there, now=now, keep_bytes=keep_bytes, keep_s=keep_s)
        if not dry_run:
            chosen = [image for image in chosen if _remove(shelf, image, manifests)]
            _tidy(shelf)
    return [_removed(image, manifests) for image in chosen]


def forget_silent_uses(shelf: Shelf, grace_s: float) -> None:
    """Remove uses of processes that are dead or have not moved while we looked."""
    folders = [shelf.uses / name for name in fsio.names(shelf.uses)]
    for folder in folders:
        alive = uses(folder)
        for name in fsio.names(folder):
            if name.startswith("use-") and folder / name not in alive:
                (folder / name).unlink(missing_ok=True)
    left = [path for folder in folders for path in uses(folder)]
    for path in silent(left, shelf.uses / f"{TEMPORARY}{secrets.token_hex(8)}", grace_s):
        path.unlink(missing_ok=True)


def _objects(shelf: Shelf) -> list[str]:
    return [name for name in fsio.names(shelf.objects) if name == object_name(_digest(name))]


def _kept(shelf: Shelf, name: str) -> Kept | None:
    """None: another `gc` was faster."""
    digest = _digest(name)
    folder = shelf.uses / digest
    try:
        facts = (shelf.objects / name).stat()
    except FileNotFoundError:
        return None
    last = last_use(folder) or facts.st_mtime
    return Kept(digest=digest, size=facts.st_size, last_used=last, in_use=bool(uses(folder)))


def _remove(shelf: Shelf, image: Kept, manifests: list[Manifest]) -> bool:
    final, hidden = shelf.object(image.digest), shelf.objects / f"{TEMPORARY}{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        final.rename(hidden)
        if uses(shelf.uses / image.digest):
            hidden.rename(final)
            return False
        for manifest in manifests:
            if manifest.digest == image.digest:
                shelf.reference(manifest).unlink(missing_ok=True)
        hidden.unlink()
        fsio.remove_folder(shelf.uses / image.digest)
        return True
    return False


def _tidy(shelf: Shelf) -> None:
    """References without an object, objects without a reference, temporary files, marks of those who waited, logs."""
    leases = [shelf.leases / name for name in fsio.names(shelf.leases)]
    for folder in (shelf.objects, shelf.uses, *leases):
        fsio.sweep(folder, ABANDONED_S)
    manifests = shelf.manifests()
    objects = set(_objects(shelf))  # after them: an object is published before its reference
    for manifest in manifests:
        if object_name(manifest.digest) not in objects:
            shelf.reference(manifest).unlink(missing_ok=True)
    named = {object_name(manifest.digest) for manifest in manifests}
    nobodys = {name for name in objects - named if not uses(shelf.uses / _digest(name))}
    waited = [lease / name for lease in leases for name in fsio.names(lease) if name.startswith("waiting-")]
    now = _clock(shelf)
    _unlink_old([shelf.objects / name for name in nobodys] + waited, now - ABANDONED_S)
    _unlink_old([shelf.logs / name for name in fsio.names(shelf.logs)], now - LOGS_S)


def _unlink_old(paths: list[Path], before: float) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()


def _removed(image: Kept, manifests: list[Manifest]) -> Removed:
    names = {f"{m.name} ({m.mode})" for m in manifests if m.digest == image.digest}
    return Removed(digest=image.digest, size=image.size, names=tuple(sorted(names)))


def _clock(shelf: Shelf) -> float:
    """Now, by the clock of the filesystem that stamps the files."""
    stamp(shelf.uses)
    return last_use(shelf.uses)


def _digest(name: str) -> str:
    return name.removeprefix("sha256-").removesuffix(".sif")
