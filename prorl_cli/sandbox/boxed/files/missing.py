"""Tool `_missing {"folder", "there", "skip", "editable", "most"}` of graders, for a box that nothing has run in: the
files below a folder that another box of its kind lacks, as JSON `{"files": [path, …], "more"}`.

`there` holds the names that the other box has, by the folders whose names have changed in it; of what is not there,
what matches a pattern of `editable` is told. Follows no link, and tells no name that is no text. Refuses to list more
than `most` files, or names that are too long together: `more` says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

NAMES = 200_000
"""Characters of all names, so that the answer stays whole."""


def run(arguments: dict[str, Any]) -> str:
    """See the module's own page."""
    top, skip, found = os.path.realpath(arguments["folder"]), arguments["skip"], list[str]()
    for folder, names in arguments["there"].items():
        here = os.path.join(top, folder)  # noqa: PTH118 - small in every box
        if os.path.realpath(here) != os.path.normpath(here) or not os.path.isdir(here):  # noqa: PTH112
            continue
        for name in set(os.listdir(here)) - {*names, *skip}:
            paths = (os.path.relpath(path, top) for path in _files(os.path.join(here, name), skip))  # noqa: PTH118
            found += (path for path in paths if any(fnmatchcase(path, one) for one in arguments["editable"]))
            if len(found) > arguments["most"] or len(json.dumps(found)) > NAMES:
                return json.dumps({"files": [], "more": True})
    return json.dumps({"files": sorted(path for path in found if path.isprintable()), "more": False})


def _files(path: str, skip: list[str]) -> Iterator[str]:
    """The file or link itself, or what lies below it."""
    if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if name not in skip]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        yield from (os.path.join(folder, name) for name in [*names, *links])  # noqa: PTH118
