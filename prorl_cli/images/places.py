"""Where on this node an image is built: on a disk of the node's own, with room for the image unpacked.

Refuses network filesystems, which a build's fakeroot does not work on, and folders where nothing may be executed; takes
memory (tmpfs) only where there is no disk. `choose` is pure; `scratch_folder` asks the node. Called by `build`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_cli import nodelocal
from prorl_cli.errors import UserError
from prorl_cli.images import guard

_ASKED = ("APPTAINER_TMPDIR", "SINGULARITY_TMPDIR", "SLURM_TMPDIR", "TMPDIR")
_NETWORK = frozenset(
    ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs", "panfs", "orangefs", "pvfs2", "wekafs"]
)
_MEMORY = frozenset(["tmpfs", "ramfs"])
_ENOUGH = 2 << 30
"""Free bytes below which a disk is passed over: an image with compilers is as large unpacked."""
_PREFIX = "prorl-build-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder as the node shows it; `free` in bytes."""

    path: str
    kind: str
    free: int
    writable: bool
    executable: bool


def choose(places: Sequence[Place]) -> Place:
    """The first disk with room, else the roomiest memory, else the roomiest disk. Raises `UserError`."""
    usable = [place for place in places if not fault(place)]
    disks = [place for place in usable if place.kind not in _MEMORY]
    roomy = [place for place in disks if place.free >= _ENOUGH]
    memory = [place for place in usable if place.kind in _MEMORY and place.free >= _ENOUGH]
    for found in (roomy[:1], _roomiest(memory), _roomiest(usable)):
        if found:
            return found[0]
    faults = "; ".join(f"{place.path} {fault(place)}" for place in places)
    raise UserError(f"no folder on this node to build in ({faults}): say one in APPTAINER_TMPDIR")


def fault(place: Place) -> str:
    """Why nothing can be built there; empty when it can."""
    if place.kind.removeprefix("fuse.") in _NETWORK:
        return f"is on a network filesystem ({place.kind})"
    if not place.writable:
        return "cannot be written"
    return "" if place.executable else "is mounted noexec"


@contextmanager
def scratch_folder(environment: Mapping[str, str]) -> Iterator[Path]:
    """A new folder for one build. What killed builders left on this node is removed first. Raises `UserError`."""
    asked = [environment[name] for name in _ASKED if environment.get(name)]
    candidates = list(dict.fromkeys([*asked, "/var/tmp", "/tmp"]))
    top = Path(choose([_look(path) for path in candidates]).path)
    for left in nodelocal.abandoned(top, _PREFIX):
        guard.remove(str(left))
    private = nodelocal.make(top, _PREFIX)
    try:
        yield private.folder
    finally:
        guard.remove(str(private.folder))
        os.close(private.lock)


def _roomiest(places: Sequence[Place]) -> list[Place]:
    return sorted(places, key=lambda place: -place.free)[:1]


def _look(path: str) -> Place:
    try:
        facts, free = os.statvfs(path), shutil.disk_usage(path).free
    except OSError:
        return Place(path=path, kind="", free=0, writable=False, executable=True)
    writable = os.access(path, os.W_OK | os.X_OK)
    executable = not facts.f_flag & os.ST_NOEXEC
    return Place(path=path, kind=_kind(Path(path)), free=free, writable=writable, executable=executable)


def _kind(path: Path) -> str:
    """The type of the filesystem that the longest mount point above `path` shows."""
    real, best, kind = path.resolve(), -1, ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        point = words.split()[4].encode().decode("unicode_escape")
        if real.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), rest.split()[0]
    return kind
