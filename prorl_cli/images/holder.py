"""Who holds something on the shared filesystem, and whether that process is proven dead from here.

Proof needs the same kernel and the same process namespace; of any other node only silence can be judged (`contest`,
`uses`). Called by whoever writes or reads a lease, a hold or a folder of its own.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import psutil

from prorl_cli import fsio
from prorl_cli.fsio.identity import still_runs

log = logging.getLogger(__name__)

BEATS = 20
"""Beats of a holder in the time after which its silence counts."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process of some node; `token` is its own for what it holds."""

    token: str
    node: str
    boot: str
    namespace: int
    pid: int
    started: float

    @property
    def gone(self) -> bool:
        """It is dead, for this kernel says so; False also where that cannot be told."""
        here = (self.boot, self.namespace) == (_boot(), _namespace())
        return here and not still_runs(self.pid, self.started)


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    beat: int
    holder: Holder


def holder_here() -> Holder:
    """This process, with a new token."""
    process = psutil.Process()
    return Holder(
        token=secrets.token_hex(8), node=socket.gethostname(), boot=_boot(), namespace=_namespace(),
        pid=process.pid, started=process.create_time(),
    )  # fmt: skip


def read_beat(path: Path) -> tuple[int, Holder | None]:
    """The newest whole line of a beating file; (0, None) when there is none."""
    found: tuple[int, Holder | None] = (0, None)
    for line in fsio.read_turns(path) or []:
        try:
            turn = msgspec.json.decode(line, type=_Turn)
        except msgspec.DecodeError:
            continue
        found = max(found, (turn.beat, turn.holder), key=lambda pair: pair[0])
    return found


class Beat:
    """A counter of this process in `path` that moves while the block lasts; the file goes when it ends."""

    def __init__(self, path: Path, holder: Holder, grace_s: float) -> None:
        self._path = path
        self._holder = holder
        self._every = grace_s / BEATS
        self._turn = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"beat {path.name}", daemon=True)

    def __enter__(self) -> Self:
        self.write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as refused:
            log.warning("%s stays behind: %s", self._path, refused)

    def write(self) -> None:
        """Move the counter once. Raises `RunDirError`."""
        self._turn += 1
        text = msgspec.json.encode(_Turn(beat=self._turn, holder=self._holder))
        fsio.write_turn(self._path, text, self._turn)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self.write()
            except OSError as error:
                log.warning("no heartbeat: %s", error)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
