"""A root of a box's own: an image or the host's programs, and over it what the box writes, on the node's own disk.

Where the kernel refuses that (an overlay in a user namespace: Linux 5.11, no network filesystem), the root is read-only
but for folders in memory. The box's first process builds it, moves in and lets go of the old one. Called by `forked`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.sandbox.boxed import isolation
from prorl_cli.sandbox.boxed.cloning import clone, ensure_folder
from prorl_cli.sandbox.boxed.isolation import HOME, bind, mount, mount_memory

PRORL = "/.prorl"
PRIVATE = f"{PRORL}/private"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NODE = "/node"
"""Where the zygote sees the folder that its worker made for it, with one in it for each box."""
SCRATCH = "/scratch"
"""Where it sees the folder around that: it removes its own by the name it has there, when it leaves."""
IMAGE = "/image"
"""Where it sees the image whose boxes it makes."""
STAGE = f"{NODE}/stage"
"""Where a new root is put together."""
_OLD = "/.old"
_FOLDERS = (_OLD, PRORL, "/proc", "/dev", "/tmp", "/var/tmp", HOME)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd"} | {
    name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """What boxes begin with: the folder `lower`, and mounts over it, as pairs of the zygote's path and their own."""

    lower: str
    binds: Sequence[Sequence[str]]


def lay(root: Root, own: str, like: str = "") -> None:
    """Stage a root whose changes go to `own`/upper, which begins as that of box `like`. Raises `OSError` where the
    kernel refuses that."""
    upper, work = f"{own}/upper", f"{own}/work"
    os.makedirs(STAGE, exist_ok=True)
    os.mkdir(own, 0o700)
    os.mkdir(work)
    if like:
        clone(f"{like}/upper", upper)
    else:
        os.mkdir(upper, 0o755)
        _know_user(f"{root.lower}/etc/passwd", f"{upper}/etc")
    for path in _FOLDERS:
        ensure_folder(upper, path)
    data = f"lowerdir={root.lower},upperdir={upper},workdir={work},userxattr,volatile"
    mount("overlay", STAGE, "overlay", isolation.MS_NOSUID | isolation.MS_NODEV, data)


def _know_user(passwd: str, etc: str) -> None:
    """The box's user gets a name, as many programs want."""
    text, number = _text_of(passwd), str(isolation.BOX_UID)
    if text and not any(line.split(":")[2:3] == [number] for line in text.splitlines()):
        Path(etc).mkdir()
        line = f"box:x:{number}:{number}:box:{HOME}:/bin/sh\n"
        Path(etc, "passwd").write_text(f"{text}{line}", errors="surrogateescape")


def _text_of(path: str) -> str:
    """Of a file of the image's, which may be anything: a pipe, say, that nobody writes to."""
    with contextlib.suppress(OSError), open(path, errors="surrogateescape", opener=_without_waiting) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
    return ""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def lay_in_memory(root: Root, memory: int) -> None:
    """Stage a root of which only the top folder, the home and /tmp can be written, in `memory` bytes."""
    os.makedirs(STAGE, exist_ok=True)
    mount_memory(STAGE, memory, "0755")
    for name in os.listdir(root.lower):
        source, target = f"{root.lower}/{name}", f"{STAGE}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source) and name not in ("proc", "dev", "tmp", "home"):
            os.mkdir(target)
            bind(source, target)
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):  # /var may be there, and read-only
            os.makedirs(STAGE + folder, exist_ok=True)


def move_in(root: Root, memory: int) -> None:
    """As first process of a pid namespace: the staged root becomes the only one, with /proc, devices and /tmp."""
    isolation.pivot(STAGE, STAGE + _OLD)
    bind(_OLD + PRORL, PRORL)
    for source, inside in root.binds:
        bind(_OLD + source, inside)
    for folder in (PRIVATE, "/tmp", "/var/tmp"):
        with contextlib.suppress(FileNotFoundError):
            mount_memory(folder, memory)
    isolation.mount_proc()
    _devices(memory)
    isolation.let_go(_OLD)
    os.rmdir(_OLD)


def _devices(memory: int) -> None:
    mount_memory("/dev", 1 << 16, "0755")
    for name in _DEVICES:
        if os.path.exists(f"{_OLD}/dev/{name}"):
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY))
            bind(f"{_OLD}/dev/{name}", f"/dev/{name}")
    for name, target in _LINKS.items():
        os.symlink(target, f"/dev/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"/dev/{name}")
    mount(
        "devpts", "/dev/pts", "devpts", isolation.MS_NOSUID | isolation.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"
    )
    mount_memory("/dev/shm", memory)
    isolation.make_read_only("/dev")
