"""Counts what happens to names below a folder: the kernel tells, so that nobody's work is slowed by being watched."""

import ctypes
import os
import struct
import threading
from collections import Counter
from pathlib import Path

KINDS = {"opened": 0x20, "renamed": 0x80, "created": 0x100, "removed": 0x200}
"""Bits of inotify(7): IN_OPEN, IN_MOVED_TO, IN_CREATE, IN_DELETE."""

IN_ISDIR, IN_IGNORED = 0x40000000, 0x8000

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """A folder and all below it, those that appear later too (what is in them by then counts as created)."""

    def __init__(self, root: Path):
        self.counts = Counter()
        self._fd = _libc.inotify_init()
        self._folders: dict[int, Path] = {}
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            self._add(folder)
        threading.Thread(target=self._follow, daemon=True).start()

    def _add(self, folder: Path):
        number = _libc.inotify_add_watch(self._fd, os.fsencode(folder), sum(KINDS.values()))
        if number >= 0:
            self._folders[number] = folder

    def _follow(self):
        while data := os.read(self._fd, 1 << 20):
            at = 0
            while at < len(data):
                number, mask, _, length = struct.unpack_from("iIII", data, at)
                name = os.fsdecode(data[at + 16 : at + 16 + length].rstrip(b"\0"))
                at += 16 + length
                self._event(number, mask, name)

    def _event(self, number, mask, name):
        if mask & IN_IGNORED or not name:
            return
        for kind, bit in KINDS.items():
            self.counts[kind] += bool(mask & bit and not (kind == "opened" and mask & IN_ISDIR))
        if mask & IN_ISDIR and mask & (KINDS["created"] | KINDS["renamed"]):
            self._appeared(self._folders[number] / name, counted=bool(mask & KINDS["renamed"]))

    def _appeared(self, folder: Path, *, counted):
        """Watch a new folder; what a renamed one holds was counted where it was made."""
        self._add(folder)
        try:
            inside = list(folder.iterdir())
        except FileNotFoundError:
            return
        self.counts["created"] += 0 if counted else len(inside)
        for path in inside:
            if path.is_dir():
                self._appeared(path, counted=counted)
