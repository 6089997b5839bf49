"""What this node allows boxes, and what prorl will use of it: `gather_boxes` tries each thing, `box_findings` judges.

Only boxes themselves are needed; all else says why they are not better, each with whom to ask for what. Called by
`node`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import pwd
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import ProrlError, UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.report.findings import Finding, found, tried
from prorl_cli.sandbox import flavour, open_boxes
from prorl_cli.sandbox.container import find_program

PART = "boxes"

SWITCHES = {
    "user/max_user_namespaces": "0",
    "kernel/unprivileged_userns_clone": "0",
    "kernel/apparmor_restrict_unprivileged_userns": "1",
    "user/max_net_namespaces": "0",
}
"""Below /proc/sys, with the value that takes something away from boxes."""

_OVERLAY = "mount -t overlay overlay -o lowerdir=l,upperdir=u,workdir=w,userxattr m"
_SIZE = re.compile(r"^\s*sessiondir max size\s*=\s*(\d+)", re.MULTILINE)
_NO_PIDS = re.compile(r"^\s*allow pid ns\s*=\s*no", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What was tried; a failure is its own words, "" is success. `boxes`: why `bwrap` boxes do not work, and what they
    do without; `container`: what Apptainer or SingularityCE says of itself, with its `settings`."""

    kernel: str
    namespaces: str
    network: str
    overlay: str
    scratch: str
    switches: Mapping[str, str]
    fuse: bool
    container: str
    settings: str
    cgroups: str
    subuids: bool
    boxes: str
    boxes_note: str


def gather_boxes() -> Node:
    """Ask this machine."""
    scratch = tempfile.gettempdir()
    boxes, note = asyncio.run(_try_boxes())
    return Node(
        kernel=platform.release(),
        namespaces=_failure("unshare", "--user", "--map-root-user", "true"),
        network=_failure("unshare", "--user", "--map-root-user", "--net", "true"),
        overlay=_try_overlay(scratch),
        scratch=scratch,
        switches={name: _read(Path("/proc/sys", name)).strip() for name in SWITCHES},
        fuse=os.access("/dev/fuse", os.R_OK | os.W_OK),
        container=_container(),
        settings=_read(Path("/etc/apptainer/apptainer.conf")) or _read(Path("/etc/singularity/singularity.conf")),
        cgroups=_cgroups(),
        subuids=_has_subuids(),
        boxes=boxes,
        boxes_note=note,
    )


def box_findings(node: Node) -> Iterator[Finding]:
    """Each with its fix where something is missing."""
    yield _boxes(node)
    works = not node.namespaces
    yield _found("user namespaces", "work" if works else node.namespaces, works, _namespace_fix(node.switches))
    fix = "ask for user.max_net_namespaces > 0: no runtime can keep boxes off the network without"
    yield _found("network none", "works" if not node.network else node.network, not node.network, fix)
    yield _overlay(node)
    yield _kernel(node.kernel)
    fix = "a SIF cannot be mounted without it: ask for /dev/fuse with mode 0666, or unpack images to folders"
    yield _found("/dev/fuse", "readable and writable" if node.fuse else "not for you, or not there", node.fuse, fix)
    yield from _apptainer(node)
    yield _found("cgroups", f"{node.cgroups}; not needed: prorl limits its boxes by itself", True, "")
    fix = "only builds with `--fakeroot` of images that need several users want some: ask for /etc/subuid"
    yield _found("subordinate ids", "yours" if node.subuids else "none", node.subuids, fix)


def _found(name: str, value: str, good: bool, fix: str) -> Finding:
    return found(f"{PART} on {socket.gethostname()}", name, value, good, fix)


def _boxes(node: Node) -> Finding:
    if node.boxes:
        fix = "`auto` would fall back to plain processes, without walls, and refuse bash and python: see below"
        return _found("sandbox.runtime: bwrap", node.boxes, False, fix)
    kept = node.boxes_note or f"works; boxes write to {node.scratch}"
    return _found("sandbox.runtime: bwrap", kept, not node.boxes_note, "what they write is bounded by sandbox.memory")


def _namespace_fix(switches: Mapping[str, str]) -> str:
    """The setting that is to blame, if one is."""
    why = "unprivileged user namespaces are what rootless containers stand on: ask for"
    if switches.get("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            f"{why} an AppArmor profile of bwrap and apptainer that allows `userns`, or for "
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if switches.get("kernel/unprivileged_userns_clone") == "0":
        return f"{why} kernel.unprivileged_userns_clone=1"
    return f"{why} user.max_user_namespaces > 0"


def _overlay(node: Node) -> Finding:
    works = not node.overlay
    fix = (
        "boxes of bwrap write to memory, those of apptainer get a container each and start slowly: "
        f"it takes Linux 5.11, and a disk of the node's own under {node.scratch} (set TMPDIR)"
    )
    return _found("overlay", f"works on {node.scratch}" if works else node.overlay, works, fix)


def _kernel(release: str) -> Finding:
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    fix = "before 5.14 the kernel counts a user's processes, not a box's: a fork bomb is ended only when it is seen"
    return _found("kernel", release, numbers >= (5, 14), fix)


def _apptainer(node: Node) -> Iterator[Finding]:
    if not node.container:
        yield _found("apptainer", "not found", False, "`module load apptainer` in `cluster.setup`, or install it")
        return
    try:
        flavour.read_for_boxes(node.container)
    except UserError as error:
        yield _found("apptainer", node.container, False, str(error))
        return
    each = "a container for each box" if node.overlay or node.namespaces else "one container for all boxes of a worker"
    yield _found("apptainer", f"{node.container}; {each}", True, "")
    if _NO_PIDS.search(node.settings):
        fix = "boxes cannot have process lists of their own: ask for it, or use sandbox.runtime: bwrap"
        yield _found("allow pid ns", "no", False, fix)
    if size := _SIZE.search(node.settings):
        fix = f"where `--overlay` does not work, boxes can write no more than {size[1]} MiB: ask for a larger one"
        yield _found("sessiondir max size", f"{size[1]} MiB", not node.overlay or int(size[1]) >= 1024, fix)


def _failure(*command: str) -> str:
    works, said = tried(*command)
    return "" if works else said or "it does not work"


def _try_overlay(scratch: str) -> str:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        for name in "luwm":
            Path(folder, name).mkdir()
        script = f'cd "$1" && {_OVERLAY}'
        return _failure("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh", folder)


async def _try_boxes() -> tuple[str, str]:
    """Why boxes of bwrap with a root of their own do not work, and what they do without."""
    with tempfile.TemporaryDirectory() as scratch, _unheard("prorl_cli.sandbox"):
        try:
            factory = await open_boxes(Sandbox(runtime="bwrap"), scratch=Path(scratch), serve=["bash"])
        except ProrlError as error:
            return str(error), ""
        note = factory.note
        await factory.close()
        return "", note


@contextlib.contextmanager
def _unheard(room: str) -> Iterator[None]:
    """Its warnings are findings here."""
    logger = logging.getLogger(room)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _container() -> str:
    try:
        return tried(find_program(), "--version")[1]
    except UserError:
        return ""


def _cgroups() -> str:
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "version 1"
    own = _read(Path("/proc/self/cgroup")).strip().rpartition(":")[2]
    yours = os.access(f"/sys/fs/cgroup{own}/cgroup.procs", os.W_OK)
    return "version 2, delegated to you" if yours else "version 2, not delegated"


def _has_subuids() -> bool:
    """By file or by directory service."""
    number = str(os.getuid())
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = number
    listed = {line.split(":")[0] for line in _read(Path("/etc/subuid")).splitlines()}
    return bool(listed & {name, number}) or tried("getsubids", name)[0]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
