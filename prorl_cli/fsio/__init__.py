"""Durable primitives on a shared filesystem: publish, publish-exclusive, append, re-opening reads, death verdicts.

One writer a file; what readers see is whole. Refuses locks, mmap and `exists()`: other nodes' caches lie about all
three. Called by `spool`, `metrics` and everything that leaves a file in a run directory.
"""

from prorl_cli.fsio.append import AppendFile
from prorl_cli.fsio.liveness import DeathJudge
from prorl_cli.fsio.publishing import (
    fsync_folder,
    make_folder,
    publish,
    publish_exclusive,
    publish_folder,
    remove_folder,
    sweep,
    temporary_folder,
)
from prorl_cli.fsio.reading import OpenFile, names, read, reading
from prorl_cli.fsio.trouble import reported

__all__ = [
    "AppendFile",
    "DeathJudge",
    "OpenFile",
    "fsync_folder",
    "make_folder",
    "names",
    "publish",
    "publish_exclusive",
    "publish_folder",
    "read",
    "reading",
    "remove_folder",
    "reported",
    "sweep",
    "temporary_folder",
]
