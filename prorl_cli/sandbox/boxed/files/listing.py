"""The worker's own tool `_listing {"path"}`: the files below a folder as JSON, `[[name, size], …]`, links left alone.

Refuses a folder that is a link, and more than `MAX_FILES` files. Pipes, devices and links in it are not listed.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from prorl_cli.sandbox.boxed import reach
from prorl_cli.sandbox.boxed.tool_run import MAX_OUTPUT
from prorl_cli.sandbox.boxed.tools import ToolError

MAX_FILES = 5000


def run(arguments: dict[str, Any]) -> str:
    """Names relative to the folder."""
    path = arguments["path"]
    with reach.parent(f"{path}/.any") as (folder, _):
        found = sorted(_below(folder, path))
    text = json.dumps(found)
    if len(text) > MAX_OUTPUT:
        raise ToolError(f"{path}: the names of its {len(found)} files are too long together")
    return text


def _below(folder: int, path: str) -> list[tuple[str, int]]:
    found = []
    for inner, _, names, fd in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in names:
            facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                found.append((f"{inner}/{name}".removeprefix("./"), facts.st_size))
        if len(found) > MAX_FILES:
            raise ToolError(f"{path} has more than {MAX_FILES} files")
    return found
