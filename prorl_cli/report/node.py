"""What this node can do: boxes (see `boxes`), GPUs, limits. Each probe tries the thing itself.

Called by `doctor`, on whatever machine it runs.
"""

from __future__ import annotations

import os
import platform
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.report.boxes import box_findings, gather_boxes
from prorl_cli.report.findings import Finding, found, tried

LEAST_FILES = 4096
"""Open files of a router that holds some connections to each of some hundred peers."""

LEAST_PROCESSES = 256
"""A rollout worker with its boxes; login nodes often allow fewer, and prorl's commands there need few."""


def examine_node() -> list[Finding]:
    """Every probe of this machine."""
    return [_python(), *box_findings(gather_boxes()), _gpus(), *_limits(), *_surroundings()]


def _finding(name: str, value: str, good: bool = True, fix: str = "", *, needed: bool = False) -> Finding:
    return found(f"node {socket.gethostname()}", name, value, good, fix, needed=needed)


def _python() -> Finding:
    return _finding("python", platform.python_version())


def _gpus() -> Finding:
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    works, said = tried("nvidia-smi", "-L") if devices else (False, "")
    value = said if works else f"{len(devices)} devices" if devices else "none"
    return _finding("GPUs", value, bool(devices), "engines and the learner need some, on the nodes where they run")


def _limits() -> Iterator[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    many = files == resource.RLIM_INFINITY or files >= LEAST_FILES
    fix = f"raise `ulimit -Hn` to {LEAST_FILES} at least: the router holds a connection to everybody"
    yield _finding("open files", _limit(files), many, fix, needed=True)
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    many = processes == resource.RLIM_INFINITY or processes >= LEAST_PROCESSES
    yield _finding("processes", _limit(processes), many, "enough for prorl's commands here, not for a rollout worker")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _surroundings() -> Iterator[Finding]:
    """What has broken launchers elsewhere and is met by prorl: worth knowing, nothing to do."""
    proxies = sorted(name for name in os.environ if name.lower() in ("http_proxy", "https_proxy", "all_proxy"))
    if proxies:
        yield _finding("proxies", f"{', '.join(proxies)} set; roles talk to each other without them")
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError as error:
        address = f"unknown ({error})"
    told = " (roles use the interface that leads to their peers)" if address.startswith("127.") else ""
    yield _finding("own name resolves to", address + told)
    found = os.statvfs("/dev/shm")
    yield _finding("/dev/shm", f"{found.f_bavail * found.f_frsize / 2**30:.1f} GiB free")
