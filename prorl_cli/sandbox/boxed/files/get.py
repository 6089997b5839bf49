"""The worker's own tool `_get {"path", "at", "size"}`: a piece of a file, in base64 behind what the file is.

Refuses to read through a link, and what is no file or has other names (`reach`).
"""

from __future__ import annotations

import base64
import os
from typing import Any

from prorl_cli.sandbox.boxed import reach


def run(arguments: dict[str, Any]) -> str:
    """`SIZE IDENTITY BASE64`; the identity changes with the file."""
    path = arguments["path"]
    with reach.parent(path) as (folder, name):
        fd = reach.regular(folder, name, path)
        try:
            facts = os.fstat(fd)
            data = os.pread(fd, arguments["size"], arguments["at"])
        finally:
            os.close(fd)
    identity = f"{facts.st_dev:x}-{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"
    return f"{facts.st_size} {identity} {base64.b64encode(data).decode()}"
