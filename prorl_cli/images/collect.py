"""Removing images, and what killed builders and users left: what to remove is chosen by `gc`.

An image goes in three steps, so that a use that begins meanwhile is seen by one of the two: out of sight, look for
uses again, delete. Refuses to remove what somebody uses. Called by `Store.gc`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.images.gc import Kept, choose
from prorl_cli.images.manifest import Manifest, object_name
from prorl_cli.images.shelf import Shelf
from prorl_cli.images.uses import last_use, over, uses

ABANDONED_S = 6 * 3600.0
"""What nobody has written to for this long is a killed process's."""
LOGS_S = 30 * 86400.0
"""How long it is known who built what, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """An object that is gone, and the names it had; `names` is empty for one that no reference named."""

    digest: str
    size: int
    names: tuple[str, ...]


def collect(
    shelf: Shelf, *, grace_s: float, keep_bytes: int | None, keep_s: float | None, dry_run: bool
) -> list[Removed]:
    """Remove what `gc.choose` names; uses that are silent for `grace_s` are none. Raises `UserError`."""
    with shelf.writing():
        silent = over(_within(shelf.uses), fsio.temporary_name(shelf.uses), grace_s)
        if not dry_run:
            _unlink(silent)
        manifests, now = shelf.manifests(), fsio.clock(shelf.uses)
        there = filter(None, (_kept(shelf, name, silent) for name in _objects(shelf)))
        chosen = choose(there, now=now, keep_bytes=keep_bytes, keep_s=keep_s)
        if not dry_run:
            chosen = [image for image in chosen if _remove(shelf, image, manifests)]
            _tidy(shelf)
    return [_removed(image, manifests) for image in chosen]


def _objects(shelf: Shelf) -> list[str]:
    return [name for name in fsio.names(shelf.objects) if name == object_name(_digest(name))]


def _kept(shelf: Shelf, name: str, silent: set[Path]) -> Kept | None:
    """None: another `gc` was faster."""
    digest = _digest(name)
    folder = shelf.uses / digest
    try:
        facts = (shelf.objects / name).stat()
    except FileNotFoundError:
        return None
    last = last_use(folder) or facts.st_mtime
    return Kept(digest=digest, size=facts.st_size, last_used=last, in_use=bool({*uses(folder)} - silent))


def _remove(shelf: Shelf, image: Kept, manifests: list[Manifest]) -> bool:
    final, hidden = shelf.object(image.digest), fsio.temporary_name(shelf.objects)
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
    leases, users = _within(shelf.leases), _within(shelf.uses)
    for folder in (shelf.objects, shelf.leases, shelf.uses, *leases, *users):
        fsio.sweep(folder, ABANDONED_S)
    now = fsio.clock(shelf.uses)
    _tidy_objects(shelf, now - ABANDONED_S)
    _unlink(_older((path for lease in leases for path in lease.glob("waiting-*")), now - ABANDONED_S))
    _unlink(_older(_within(shelf.logs), now - LOGS_S))
    for folder in _older(leases, now - LOGS_S):
        fsio.remove_folder(folder)
    there = {_digest(name) for name in _objects(shelf)}
    for folder in _older(users, now - ABANDONED_S):
        if folder.name not in there and not uses(folder):
            fsio.remove_folder(folder)


def _tidy_objects(shelf: Shelf, before: float) -> None:
    """References without an object, and objects without a reference."""
    manifests = shelf.manifests()
    objects = set(_objects(shelf))  # after them: an object is published before its reference
    for manifest in manifests:
        if object_name(manifest.digest) not in objects:
            shelf.reference(manifest).unlink(missing_ok=True)
    nobodys = objects - {object_name(manifest.digest) for manifest in manifests}
    unused = [shelf.objects / name for name in nobodys if not uses(shelf.uses / _digest(name))]
    _unlink(_older(unused, before))


def _within(folder: Path) -> list[Path]:
    return [folder / name for name in fsio.names(folder)]


def _older(paths: Iterable[Path], before: float) -> list[Path]:
    return [path for path in paths if fsio.last_written(path) < before]


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _removed(image: Kept, manifests: list[Manifest]) -> Removed:
    names = {f"{m.name} ({m.mode})" for m in manifests if m.digest == image.digest}
    return Removed(digest=image.digest, size=image.size, names=tuple(sorted(names)))


def _digest(name: str) -> str:
    return name.removeprefix("sha256-").removesuffix(".sif")
