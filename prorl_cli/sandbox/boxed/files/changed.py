"""Tool `_changed {"folder", "skip", "most"}` of graders: which regular files below a folder came to be or were written
since the box began, as JSON `{"files": [[path, size, whether it may be executed], …], "folders": {path: [name, …]},
"links", "others", "more"}`; `folders` are those in which a name came or went, with all that are left.

It goes by the time of last change of the inode, which no program can set back. Follows no link; `links` and `others`
(devices, pipes, names that are no text) are counted. Refuses to list more than `most` files, or names that are too long
together: `more` says so; folders that do not fit besides are left out.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from prorl_cli.sandbox.boxed import processes
from prorl_cli.sandbox.boxed.tools import ToolError

SLACK_S = 2.0
"""The start of a process is known to a hundredth, that of the machine to a second."""
NAMES, ANSWER = 200_000, 250_000
"""Characters of the files' names, and of the answer, so that it stays whole."""
WALKED = 200_000
"""Entries looked at: beyond is no tree of a task."""


def run(arguments: dict[str, Any]) -> str:
    """See the module's own page."""
    listing = _Listing(arguments["most"], _began(os.getppid()) - SLACK_S)
    top = os.path.realpath(arguments["folder"])
    if not os.path.isdir(top) or os.path.islink(arguments["folder"]):  # noqa: PTH112, PTH114 - small in every box
        raise ToolError("the folder is gone")
    for folder, folders, names in os.walk(top):
        listing.enter(os.path.relpath(folder, top), os.lstat(folder), [*folders, *names])
        folders[:] = sorted(name for name in folders if name not in arguments["skip"])
        for name in [*folders, *names]:
            listing.look(os.path.join(folder, name), top)  # noqa: PTH118 - small in every box
            if listing.more:
                return listing.text()
    return listing.text()


class _Listing:
    def __init__(self, most: int, since: float) -> None:
        self._most, self._since = most, since
        self._files: list[tuple[str, int, bool]] = []
        self._folders: dict[str, list[str]] = {}
        self._links = self._others = self._walked = self._names = 0
        self.more = False

    def enter(self, folder: str, found: os.stat_result, names: list[str]) -> None:
        if max(found.st_ctime, found.st_mtime) >= self._since and folder.isprintable():
            self._folders[folder] = sorted(name for name in names if name.isprintable())

    def look(self, path: str, top: str) -> None:
        found = os.lstat(path)
        self._walked += 1
        if stat.S_ISDIR(found.st_mode) or max(found.st_ctime, found.st_mtime) < self._since:
            pass
        elif stat.S_ISLNK(found.st_mode):
            self._links += 1
        elif stat.S_ISREG(found.st_mode) and path.isprintable():
            name = os.path.relpath(path, top)
            self._files.append((name, found.st_size, bool(found.st_mode & 0o111)))
            self._names += len(json.dumps(name))
        else:
            self._others += 1
        self.more = len(self._files) > self._most or self._names > NAMES or self._walked > WALKED

    def text(self) -> str:
        files, folders = sorted(self._files)[: self._most], dict[str, list[str]]()
        answer = {"files": files, "folders": folders, "links": self._links, "others": self._others, "more": self.more}
        room = ANSWER - len(json.dumps(answer))
        for folder, names in self._folders.items():
            room -= len(json.dumps({folder: names}))
            if room >= 0:
                folders[folder] = names
        return json.dumps(answer)


def _began(pid: int) -> float:
    """When a living process began, in seconds since the epoch."""
    process = processes.read(pid)
    assert process, "who asked for this waits for its answer"
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    return boot + process.started / processes.TICKS
