"""What this node can do: namespaces, containers, GPUs, limits. Each probe tries the thing itself.

Called by `doctor`, on whatever machine it runs.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.report.findings import Finding, Verdict

PROBE_S = 20.0
LEAST_FILES = 4096
"""Open files of a router that holds some connections to each of some hundred peers."""

LEAST_PROCESSES = 256
"""A rollout worker with its boxes; login nodes often allow fewer, and prorl's commands there need few."""


def examine_node() -> list[Finding]:
    """Every probe of this machine."""
    return [_python(), _namespaces(), _fuse(), _apptainer(), _bwrap(), _gpus(), *_limits(), *_surroundings()]


def _finding(name: str, value: str, good: bool = True, fix: str = "", *, needed: bool = False) -> Finding:
    verdict: Verdict = "ok" if good else "bad" if needed else "note"
    part = f"node {socket.gethostname()}"
    return Finding(part=part, name=name, value=value, verdict=verdict, fix="" if good else fix)


def _try(*command: str) -> tuple[bool, str]:
    """Whether a command works, and its first line."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PROBE_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, lines[0] if lines else ""


def _python() -> Finding:
    return _finding("python", platform.python_version())


def _namespaces() -> Finding:
    works, said = _try("unshare", "--user", "--map-root-user", "true")
    fix = (
        "unprivileged user namespaces are what rootless containers stand on: ask for user.max_user_namespaces > 0 "
        "(Ubuntu: also kernel.apparmor_restrict_unprivileged_userns=0)"
    )
    return _finding("user namespaces", "work" if works else said, works, fix)


def _fuse() -> Finding:
    works = os.access("/dev/fuse", os.R_OK | os.W_OK)
    fix = "a SIF cannot be mounted without it: ask for /dev/fuse with mode 0666, or unpack images to folders"
    return _finding("/dev/fuse", "readable and writable" if works else "not for you, or not there", works, fix)


def _apptainer() -> Finding:
    name = next((name for name in ("apptainer", "singularity") if shutil.which(name)), "")
    if not name:
        return _finding("apptainer", "not found", False, "`module load apptainer` in `cluster.setup`, or install it")
    works, said = _try(name, "--version")
    return _finding("apptainer", said, works, "it does not start here")


def _bwrap() -> Finding:
    works, said = _try("bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-net", "true")
    return _finding("bubblewrap", "works" if works else said, works, "install bubblewrap, or use Apptainer's boxes")


def _gpus() -> Finding:
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    works, said = _try("nvidia-smi", "-L") if devices else (False, "")
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
