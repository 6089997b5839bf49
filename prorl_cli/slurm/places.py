"""Whether the compute nodes can plausibly see what a recipe names, and whether the run directory has room.

A login node cannot look through a compute node's eyes: what is certain is an error, what is likely is a doubt, and
`prorl doctor --shared PATH` settles it. Called by `preflight`.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prorl_cli.recipe import Recipe
from prorl_cli.recipe.schema import TINY
from prorl_cli.recipe.units import format_size
from prorl_cli.slurm.facts import Facts

NODE_LOCAL = ("/tmp", "/var/tmp", "/dev", "/run", "/proc", "/sys")
"""Each node has its own."""

LOCAL_FILESYSTEMS = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs", "squashfs"])
"""Disks of one machine; a login node may still be the server of one."""

COMPONENTS = ("control", "rollout", "engine", "learner")

LEAST_BYTES = 2**30
LEAST_INODES = 5_000
"""A short run writes hundreds of files; with less than this the first hour ends in EDQUOT."""


def place_problems(recipe: Recipe, run_root: Path, facts: Facts | None) -> Iterator[str]:
    """What is certainly wrong."""
    for key, path in _inputs(recipe):
        checked_elsewhere = not path.exists() and not key.endswith("image")
        if not os.access(path, os.R_OK) and not checked_elsewhere:
            yield f"{key}: {path} cannot be read here: correct the path, or its permissions"
    parent = _existing(run_root)
    if not os.access(parent, os.W_OK | os.X_OK):
        yield f"--run-dir: {parent} is not writable for you, so {run_root} cannot be made: choose another place"
    else:
        yield from _room(parent)
    if not _only_this_machine(facts):
        for key, path in [*_inputs(recipe), ("--run-dir", run_root), ("prorl's own Python", Path(sys.prefix))]:
            if folder := _node_local(path):
                yield f"{key}: {path} is on this machine only ({folder} is every node's own): use a shared filesystem"


def place_doubts(recipe: Recipe, run_root: Path, facts: Facts | None) -> Iterator[str]:
    """What is probably wrong."""
    if _only_this_machine(facts):
        return
    for key, path in [*_inputs(recipe), ("--run-dir", run_root)]:
        kind = filesystem(_existing(path))
        if kind in LOCAL_FILESYSTEMS and not _node_local(path):
            yield f"{key}: {path} is on a disk of this machine ({kind}): do the compute nodes see it?"


def _inputs(recipe: Recipe) -> list[tuple[str, Path]]:
    """Paths that roles read."""
    found = [] if recipe.model == TINY else [("model", Path(recipe.model).absolute())]
    for number, spec in enumerate(recipe.tasks):
        if not spec.source.startswith(("reasoning_gym:", "procedural:")):
            found.append((f"tasks.{number}.source", Path(spec.source).absolute()))
    images = {f"cluster.{name}.image": getattr(recipe.cluster, name).image for name in COMPONENTS}
    images["sandbox.image"] = recipe.sandbox.image
    found += [(key, Path(image).absolute()) for key, image in images.items() if image]
    return found


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _node_local(path: Path) -> str:
    real = Path(os.path.realpath(_existing(path)))
    return next((folder for folder in NODE_LOCAL if real.is_relative_to(folder)), "")


def _only_this_machine(facts: Facts | None) -> bool:
    """Whether every node of the cluster is this very machine, so that all of them see what it sees."""
    mine = {socket.gethostname(), socket.gethostname().split(".")[0], "localhost"}
    return facts is not None and bool(facts.nodes) and all(node.host in mine for node in facts.nodes)


def filesystem(path: Path) -> str:
    """The type of the filesystem that holds `path`, empty where the kernel does not say."""
    real, best = Path(os.path.realpath(path)), ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, mounted, kind, *_ = line.split(" ")
        mounted = mounted.replace("\\040", " ")
        if real.is_relative_to(mounted) and len(mounted) >= len(best[0]):
            best = (mounted, kind)
    return best[1]


def _room(parent: Path) -> Iterator[str]:
    """Free bytes and inodes, of the filesystem and of the user's quota."""
    found = os.statvfs(parent)
    free, inodes = found.f_bavail * found.f_frsize, found.f_favail
    if free < LEAST_BYTES:
        yield f"--run-dir: {parent} has only {format_size(free)} free: make room, or choose another place"
    if found.f_files and inodes < LEAST_INODES:
        yield f"--run-dir: {parent} can take only {inodes} more files: make room, or choose another place"
    if filesystem(parent) == "lustre" and shutil.which("lfs"):
        yield from quota_problems(_lustre_quota(parent), parent)


def _lustre_quota(parent: Path) -> str:
    command = ["lfs", "quota", "-q", "-u", str(os.getuid()), str(parent)]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def quota_problems(text: str, parent: Path) -> Iterator[str]:
    """From `lfs quota -q`: path, kbytes, quota, limit, grace, files, quota, limit, grace; a star marks what is over."""
    fields = text.split()
    if len(fields) < 9:
        return
    for name, used, limit, least, unit in (
        ("KiB", fields[1], fields[3], LEAST_BYTES // 1024, "disk"),
        ("files", fields[5], fields[7], LEAST_INODES, "file"),
    ):
        left = int(limit.rstrip("*") or 0) - int(used.rstrip("*") or 0)
        if limit.rstrip("*") != "0" and left < least:
            yield f"--run-dir: your {unit} quota on {parent} leaves {max(0, left)} {name}: make room first"
