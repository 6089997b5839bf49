"""The kernel calls that wall a box in: namespaces, mounts, capabilities, limits. Called by the boxes' own code only.

Each function is one promise; all raise `OSError` with the name of the call. Linux only, by ctypes, since Python
has no `mount` and gained `unshare` only in 3.12.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import signal
import socket
from collections.abc import Sequence

_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP = 0x10000000, 0x20000000, 0x40000000, 0x02000000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
_MS_RDONLY, _MS_REMOUNT = 1, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522

HOME = "/home/box"
"""Of a box that has a whole root."""

BOX_UID = 1000
"""Inside its user namespace a box is this user, never root."""
_INOTIFY_INSTANCES = 16
"""The kernel gives 128 to all processes of a user, in whatever namespace."""

_DESCRIPTORS = 4096

_KEYCTL = {"x86_64": 250, "aarch64": 219}
"""The number of the system call, which no libc names."""
_JOIN_SESSION_KEYRING, _SETPERM = 1, 5

NOBODY = 65534
"""Outside of it, the boxes of a worker that runs as root are this user: nothing of root's is theirs."""


def _write(path: str, text: str) -> None:
    """By bare system calls: every page of Python that a box touches is copied for it first."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _checked(result: int, call: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _prctl(option: int, value: int, call: str, other: int = 0) -> None:
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(other), 0, 0), call)


def die_with_parent(parent: int, death: int = signal.SIGKILL) -> None:
    """Signal `death` arrives when the parent dies; exits at once where `parent` is already gone."""
    _prctl(_PR_SET_PDEATHSIG, death, "prctl(PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(0)


def adopt_orphans() -> None:
    """Descendants whose parent dies become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "prctl(CHILD_SUBREAPER)")


def set_dumpable(dumpable: bool) -> None:
    """A process that is not dumpable cannot be traced or read by its equals."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable), "prctl(DUMPABLE)")


def become_nobody() -> None:
    """Root gives up its user before it makes a box: limits do not bind root, and root owns the host's files."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    set_dumpable(True)  # cleared by setresuid; without it /proc/self/uid_map is root's


def enter_namespaces(kinds: int, as_uid: int, as_gid: int) -> None:
    """New namespaces for this process, a pid namespace for its next child; inside it is `as_uid` and `as_gid`."""
    uid, gid = os.geteuid(), os.getegid()
    _checked(_LIBC.unshare(kinds), "unshare")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{as_uid} {uid} 1")
    _write("/proc/self/gid_map", f"{as_gid} {gid} 1")


def furnish(memory: int) -> None:
    """As first process of a pid namespace: own /proc, own tmpfs /tmp of `memory` bytes, own host name."""
    keep_mounts_private()
    mount_proc()
    mount_memory("/tmp", memory)
    settle("/tmp")


def refurnish(memory: int, own: str, private: str, hidden: Sequence[str]) -> None:
    """In a root that a runtime has made: tmpfs of `memory` bytes each where things are written, and `close_off`, but
    for a tmpfs `private`."""
    keep_mounts_private()
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - see `_write`
        mount_memory(folder, memory)
    os.makedirs(private, exist_ok=True)  # noqa: PTH103 - see `_write`
    close_off(own, hidden)
    mount_memory(private, memory)


def close_off(own: str, hidden: Sequence[str]) -> None:
    """What lies below `own` cannot be changed or added to, and the `hidden` folders in it are covered."""
    bind(own, own)
    for folder in hidden:
        mount("tmpfs", folder, "tmpfs", _MS_RDONLY, "size=4096,nr_inodes=1,mode=0755")
    make_read_only(own)


def settle(home: str) -> None:
    """The last step of a root that is done."""
    socket.sethostname("box")
    _write("/proc/sys/user/max_user_namespaces", "0")  # no fresh capabilities by a namespace within
    with contextlib.suppress(FileNotFoundError):
        _write("/proc/sys/user/max_inotify_instances", str(_INOTIFY_INSTANCES))
    os.chdir(home)


def keep_mounts_private() -> None:
    """What is mounted from now on is seen by this namespace alone."""
    mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)


def mount_proc() -> None:
    """The /proc of this process's pid namespace."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def mount_memory(folder: str, size: int, mode: str = "0700") -> None:
    """A tmpfs that `size` bounds."""
    mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},nr_inodes=65536,mode={mode}")


def bind(source: str, target: str) -> None:
    """With all that is mounted below it."""
    mount(source, target, None, _MS_BIND | _MS_REC, None)


def make_read_only(folder: str) -> None:
    """A mount, not those below it."""
    mount("none", folder, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | MS_NOSUID | MS_NODEV, None)


def pivot(new: str, old: str) -> None:
    """The mount `new` becomes the root; the old one is found at `old`, a folder below it, cut to what it is there."""
    _checked(_LIBC.pivot_root(new.encode(), old.encode()), "pivot_root")
    os.chdir("/")


def let_go(old: str) -> None:
    """Nothing below this mount can be reached any more."""
    _checked(_LIBC.umount2(old.encode(), _MNT_DETACH), f"umount {old}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    """The system call."""
    as_bytes = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(_LIBC.mount(*as_bytes[:3], ctypes.c_ulong(flags), as_bytes[3]), f"mount {target}")


def uncover_proc() -> None:
    """Take bwrap's covers off the zygote's /proc: the kernel grants a new /proc only where an uncovered one is seen."""
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        _LIBC.umount2(f"/proc/{name}".encode(), _MNT_DETACH)  # EINVAL where there is no cover


def drop_capabilities() -> None:
    """No capability now, none to be gained by exec."""
    for capability in range(64):
        if _LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            break  # past the kernel's last one
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, "prctl(CAP_AMBIENT)")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_LIBC.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    forbid_new_privileges()


def forget_environment() -> None:
    """Blank the environment that this process was started with, which /proc shows for as long as it lives."""
    strings = ctypes.POINTER(ctypes.c_void_p).in_dll(_LIBC, "environ")
    for address in itertools.takewhile(bool, (strings[number] for number in itertools.count())):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    _LIBC.clearenv()


def forbid_new_privileges() -> None:
    """No setuid program helps."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "prctl(NO_NEW_PRIVS)")


def be_first_to_go() -> None:
    """The kernel's out-of-memory killer takes a box before anything else."""
    _write("/proc/self/oom_score_adj", "1000")


def limit_processes(count: int) -> None:
    """At most one more than `count` processes in this user namespace, besides its first one: the one that tells who
    watches that they are too many.

    Before Linux 5.14 the kernel counts all processes of the user instead, so nothing is limited there.
    """
    major, minor = (int(part) for part in os.uname().release.split(".")[:2])
    if (major, minor) >= (5, 14):
        resource.setrlimit(resource.RLIMIT_NPROC, (count + 2, count + 2))


def limit_descriptors() -> None:
    """Well below what the worker may have: descriptors on their way through sockets count for a user as a whole, and
    who may have fewer than are on their way can send none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(_DESCRIPTORS, hard // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), most))


def forget_keys() -> None:
    """A session keyring that nobody may use: that of the worker may hold its user's secrets. One for all boxes, for a
    user may have 200 keys. Kernels without keys have none to give; where all of a user's are taken, his stay."""
    if number := _KEYCTL.get(os.uname().machine):
        ring = _LIBC.syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
        if ring > 0:
            _LIBC.syscall(ctypes.c_long(number), ctypes.c_long(_SETPERM), ctypes.c_long(ring), ctypes.c_long(0))


def limit_tool(memory: int, cpu: int) -> None:
    """Bytes of address space (0: any) and seconds of CPU for this process; the second past `cpu` kills what ignores
    SIGXCPU."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
