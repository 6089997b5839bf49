"""What two nodes see of one folder, as findings: one job of two tasks, each `python -m prorl_cli.report.probe FOLDER`.

Called by `doctor --shared`.
"""

from __future__ import annotations

import json
import secrets
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.report.findings import Finding, Verdict
from prorl_cli.report.probe import MARK, NAMES
from prorl_cli.slurm.commands import SlurmError, slurm

QUEUE_S = 120.0
"""How long a person waits for two free nodes."""

RUN_S = 240.0

SLOW_S = 5.0
"""Attribute caches hold this long and longer; prorl re-opens what it waits for, so it is late then, and not wrong."""

SEEN = {"reopen": "write → visible", "listing": "new name → listed", "exists": "new name → exists()"}
TAKEN = {"create": "exclusive create", "link": "exclusive link"}


def measure(folder: Path, partition: str) -> list[Finding]:
    """Run the probe on two nodes that Slurm gives now; leaves nothing in `folder`."""
    place = folder.absolute() / f".tmp-prorl-{secrets.token_hex(4)}"
    try:
        place.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"--shared: cannot write in {folder}: {error.strerror}") from error
    command = [
        "srun", *([f"--partition={partition}"] if partition else []), "--job-name=prorl-doctor", "--nodes=2",
        "--ntasks=2", "--ntasks-per-node=1", "--time=5", f"--immediate={QUEUE_S:.0f}", "--mpi=none", "--input=none",
        sys.executable, "-m", "prorl_cli.report.probe", str(place),
    ]  # fmt: skip
    try:
        said = slurm(command, QUEUE_S + RUN_S)
    except SlurmError as error:
        return [_finding(folder, "two nodes", "not measured", "note", str(error))]
    finally:
        shutil.rmtree(place, ignore_errors=True)
    found = next((line for line in said.splitlines() if line.startswith(MARK)), MARK + "{}")
    return findings(folder, json.loads(found.removeprefix(MARK)))


def findings(folder: Path, found: dict[str, Any]) -> list[Finding]:
    """What the second node said, with verdicts. Pure."""
    if not found.get("shared"):
        fix = "put run directories and models on a filesystem that all nodes mount"
        return [_finding(folder, "shared", "a second node does not see what the first one writes", "bad", fix)]
    seen = [_seen(folder, name, found[key]) for key, name in SEEN.items()]
    fsync = f"median {1000 * statistics.median(found['fsync']):.1f} ms"
    return [
        _finding(folder, "nodes", " and ".join(found["nodes"]), "ok"), *seen,
        _finding(folder, "publish with fsync", fsync, "ok"),
        *(_taken(folder, name, found[key]) for key, name in TAKEN.items()),
    ]  # fmt: skip


def _seen(folder: Path, name: str, times: list[float]) -> Finding:
    slow = max(times) > SLOW_S
    told = f"median {1000 * statistics.median(times):.1f} ms, worst {1000 * max(times):.1f} ms"
    fix = "the mount caches for so long; every wait of a run is longer by that much" if slow else ""
    return _finding(folder, name, told, "note" if slow else "ok", fix)


def _taken(folder: Path, name: str, wrong: int) -> Finding:
    told = f"{wrong} of {NAMES} names were not taken by exactly one node"
    fix = "two launches could take the same attempt here: use another filesystem" if wrong else ""
    return _finding(folder, name, told, "bad" if wrong else "ok", fix)


def _finding(folder: Path, name: str, value: str, verdict: Verdict, fix: str = "") -> Finding:
    return Finding(part=f"shared {folder}", name=name, value=value, verdict=verdict, fix=fix)
