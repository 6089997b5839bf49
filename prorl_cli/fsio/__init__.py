"""Durable primitives on a shared filesystem: publish, publish-exclusive, append, heartbeats, re-opening reads, death
verdicts.

One writer a file; what readers see is whole. Refuses locks, mmap and `exists()`: other nodes' caches lie about all
three. Called by `spool`, `metrics` and everything that leaves a file in a run directory.
"""

from prorl_cli.fsio.append import AppendFile
from prorl_cli.fsio.liveness import DeathJudge
from prorl_cli.fsio.publishing import (
    clock,
    fsync_folder,
    fsync_tree,
    last_written,
    make_folder,
    publish,
    publish_exclusive,
    publish_folder,
    remove_folder,
    sweep,
    temporary_folder,
    temporary_name,
)
from prorl_cli.fsio.reading import OpenFile, names, read, reading
from prorl_cli.fsio.trouble import reported
from prorl_cli.fsio.twin import read_turns, write_turn

__all__ = [
    "AppendFile",
    "DeathJudge",
    "OpenFile",
    "clock",
    "fsync_folder",
    "fsync_tree",
    "last_written",
    "make_folder",
    "names",
    "publish",
    "publish_exclusive",
    "publish_folder",
    "read",
    "read_turns",
    "reading",
    "remove_folder",
    "reported",
    "sweep",
    "temporary_folder",
    "temporary_name",
    "write_turn",
]
