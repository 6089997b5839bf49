"""Who uses an image now, as files with a heartbeat: what `gc` must not remove.

Refuses to call a use over by its file's age alone: its process is proven dead, or its counter stands still while
somebody watches. Called by rollout workers through `Store.hold`, and by `gc`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.fsio import DeathJudge
from prorl_cli.images.holder import Beat, holder_here, read_beat

LAST = "last"
"""The file whose mtime says when a use last began or ended."""


@contextmanager
def held(folder: Path, grace_s: float) -> Iterator[None]:
    """A use of the image of `folder`, while the block lasts. Raises `RunDirError`."""
    holder = holder_here()
    fsio.make_folder(folder)
    with Beat(folder / f"use-{holder.token}", holder, grace_s):
        stamp(folder)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                stamp(folder)


def stamp(folder: Path) -> None:
    """The image was used now."""
    fsio.publish(folder / LAST, b"", durable=False)


def last_use(folder: Path) -> float:
    """When a use last began or ended, by the filesystem's clock; 0.0 for never."""
    with contextlib.suppress(FileNotFoundError):
        return (folder / LAST).stat().st_mtime
    return 0.0


def uses(folder: Path) -> list[Path]:
    """Uses that are not proven to be over."""
    return [path for path in _marks(folder) if not _proven_dead(path)]


def over(folders: Sequence[Path], mark: Path, grace_s: float) -> set[Path]:
    """Uses of processes that are dead, or do not move while we look and write to `mark`."""
    marks = {path for folder in folders for path in _marks(folder)}
    left = [path for path in marks if not _proven_dead(path)]
    return marks - {*left} | silent(left, mark, grace_s)


def silent(paths: Sequence[Path], mark: Path, grace_s: float) -> set[Path]:
    """Those whose counter stands still for `grace_s` seconds of this clock, while writes to `mark` go through.

    Each is judged alone: after a node's crash all of them are silent together.
    """
    first = {path: read_beat(path)[0] for path in paths}
    judges = {path: DeathJudge(grace_s) for path in paths}
    dead: set[Path] = set()
    until = time.monotonic() + 3 * grace_s
    while judges and time.monotonic() < until:
        fsio.publish(mark, b"", durable=False)
        now = time.monotonic()
        for path, judge in list(judges.items()):
            beat = read_beat(path)[0]
            judge.own_write(now)
            judge.observe("use", beat, now)
            if judge.dead(now):
                dead.add(path)
            if beat != first[path] or path in dead:
                del judges[path]
        time.sleep(grace_s / 20)
    mark.unlink(missing_ok=True)
    return dead


def _marks(folder: Path) -> list[Path]:
    return [folder / name for name in fsio.names(folder) if name.startswith("use-")]


def _proven_dead(path: Path) -> bool:
    _, holder = read_beat(path)
    return holder is not None and holder.gone
