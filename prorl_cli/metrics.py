"""Append and read the JSONL metrics: one file a process, one line a fact, read by `status` even after a crash.

Metrics are observations: nothing that a run must not lose is only here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from prorl_cli.fsio import reported
from prorl_cli.rundir import RunDir


class Recorder:
    """The metrics file of one incarnation."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, kind: str, **fields: Any) -> None:
        """Append one row; one `write` a row, so that a reader sees whole lines. `RunDirError` when the filesystem
        refuses."""
        line = json.dumps({"kind": kind, "t": time.time(), **fields}) + "\n"
        with reported(self._path):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)


def read_rows(run: RunDir, kind: str) -> Iterator[dict[str, Any]]:
    """Rows of one kind over all processes, file by file; a torn line, and what was written behind it, is skipped."""
    marker = f'{{"kind": "{kind}"'
    for path in sorted(run.metrics.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(marker):
                    with suppress(ValueError):
                        yield json.loads(line)


TAIL_BYTES = 16384
"""Holds the newest row of each kind that a process writes every few seconds."""


def newest_rows(run: RunDir, kind: str) -> list[dict[str, Any]]:
    """The last row of one kind of each process that wrote one lately, whatever the length of its file."""
    marker = f'{{"kind": "{kind}"'
    found = []
    for path in sorted(run.metrics.glob("*.jsonl")):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        for line in reversed(lines):
            if line.startswith(marker):
                with suppress(ValueError):
                    found.append(json.loads(line))
                    break
    return found
