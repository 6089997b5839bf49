"""The read-only root of `bwrap` boxes, with just what Python needs; and the command lines of zygotes.

Finding out what that is asks the interpreter once (`find_python`, about a tenth of a second); the rest is pure.
Refuses an interpreter whose libraries cannot be listed. Called by `runtimes`, `container` and `apptainer`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox.boxed import rooted
from prorl_cli.sandbox.boxed import tools as boxed

PACKAGE = Path(__file__).parent.parent

HOME = rooted.PRORL
"""Where in a box all that is prorl's lies."""

_CODE = ("nodelocal.py", "sandbox/boxed")
"""All of the package that a box sees."""

CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}
"""The whole environment of a zygote: bwrap's own processes would show the launcher's (bubblewrap #725)."""

_BOOT = """\
import sys, types
for name, path in ("prorl_cli", sys.argv[1]), ("prorl_cli.sandbox", sys.argv[1] + "/sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
"""
# Imports the boxed code from its folder without the packages around it, which import what no box has.

SERVE = _BOOT + "from prorl_cli.sandbox.boxed import zygote\nzygote.main()\n"
FURNISH = _BOOT + "from prorl_cli.sandbox.boxed import furnished\nfurnished.main()\n"
_PROBE = _BOOT + (
    "import json, sysconfig\n"
    "from prorl_cli.sandbox.boxed import furnished, zygote\n"
    "loaded = [str(getattr(module, '__file__', '')) for module in sys.modules.values()]\n"
    "folders = [sysconfig.get_path(name) for name in ('stdlib', 'platstdlib')]\n"
    "print(json.dumps([sys.base_prefix, folders, [path for path in loaded if path.endswith('.so')]]))\n"
)
FLAGS = ("-I", "-S", "-B")  # deaf to environment, site and user packages; no bytecode written

_LINKED = re.compile(r"\s*(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An interpreter as bind mounts: pairs of host path and path in the box; `hidden` folders are covered.

    `loader` is where the host has its dynamic loader: in the box it is called by name, for an image has its own there.
    """

    executable: str
    loader: str
    binds: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]

    def command(self, *arguments: str) -> list[str]:
        """To run it in a box, whatever root that has."""
        loader = [f"{HOME}/python/loader", "--library-path", f"{HOME}/python/shared"]
        return [*loader, self.executable, *FLAGS, *arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What boxes serve: prorl's own tools by name, and all that is in some further `folders`."""

    serve: tuple[str, ...]
    folders: tuple[Path, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of all of them, the worker's own included."""
        return sorted(boxed.OnDemand(self.serve, map(str, self.folders)).paths)

    @property
    def inside(self) -> list[str]:
        """Where a box finds the folders."""
        return [f"{HOME}/tools/{number}" for number, _ in enumerate(self.folders)]


def limits_of(sandbox: Sandbox) -> dict[str, float]:
    """What a box is told of its limits (`boxed.watch.Limits`)."""
    return {"memory": sandbox.memory, "cpu": sandbox.cpu, "processes": sandbox.processes, "disk": sandbox.disk}


def is_root() -> bool:
    """Whether this process is the machine's root: that of a rootless container has no other users to become."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]


def interpreter() -> str:
    """The base interpreter of this process, out of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def find_python(executable: str) -> Python:
    """What the box's interpreter is made of. Raises `UserError`."""
    base, folders, modules = json.loads(_output(executable, *FLAGS, "-c", _PROBE, str(PACKAGE)))
    binds = {path: f"{HOME}/python/{Path(path).relative_to(base)}" for path in folders}
    hidden = [f"{inside}/site-packages" for path, inside in binds.items() if Path(path, "site-packages").is_dir()]
    program = f"{HOME}/python/bin/{Path(executable).name}"
    libraries = linked_libraries(_output("ldd", executable, *modules))
    loader = next(path for path, name in libraries.items() if not name)
    binds |= {executable: program, loader: f"{HOME}/python/loader"}
    binds |= {path: f"{HOME}/python/shared/{name}" for path, name in libraries.items() if name}
    return Python(executable=program, loader=loader, binds=tuple(binds.items()), hidden=tuple(hidden))


def linked_libraries(listing: str) -> dict[str, str]:
    """From the words of `ldd`: paths of the libraries with the names they are asked for by, none for the loader."""
    matches = [match for line in listing.splitlines() if (match := _LINKED.match(line))]
    return {match["path"]: match["name"] or "" for match in matches}


def _output(*command: str) -> Any:
    try:
        return subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        raise UserError(f"cannot tell what Python needs in a box ({command[0]}): {detail}") from error


def prorl_binds(python: Python, tools: Tools) -> list[tuple[str, str]]:
    """All of prorl's that a box has, read-only: pairs of host path and path in the box."""
    code = [(str(PACKAGE / path), f"{HOME}/prorl_cli/{path}") for path in _CODE]
    return [*code, *python.binds, *zip(map(str, tools.folders), tools.inside, strict=True)]


def plain_command(own: Path) -> list[str]:
    """A zygote without walls. By its folder, the last word, a janitor knows it and what it has forked."""
    return [interpreter(), *FLAGS, "-c", SERVE, str(PACKAGE), str(own)]


def bwrap_command(bwrap: str, python: Python, tools: Tools, as_root: bool, further: Sequence[str] = ()) -> list[str]:
    """A zygote as pid 1 behind the walls of the program `bwrap`; `further` are more of its words, about mounts.

    An ordinary user needs a user namespace for that, and is not root in it, for the kernel lets only the mightiest
    root map itself once more. Root goes without: its zygote must be able to turn boxes into an unprivileged user,
    and keeps the few capabilities for it.
    """
    walls = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    caps = [word for cap in ("SYS_ADMIN", "SETUID", "SETGID", "KILL") for word in ("--cap-add", f"CAP_{cap}")]
    user = ["--cap-drop", "ALL", *caps] if as_root else ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    binds = [*prorl_binds(python, tools), (python.loader, python.loader)]
    mounts = [*_furniture(binds, python.hidden), *further, "--remount-ro", "/", "--chdir", "/"]
    run = [python.executable, *FLAGS, "-c", SERVE, f"{HOME}/prorl_cli"]
    life = ["--die-with-parent", "--as-pid-1", "--new-session"]
    environment = ["--setenv", "LD_LIBRARY_PATH", f"{HOME}/python/shared"]
    return [bwrap, *life, *walls, *user, *mounts, *environment, "--", *run]


def _furniture(binds: Sequence[tuple[str, str]], hidden: Sequence[str]) -> list[str]:
    devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]
    inside = [path for _, path in binds] + devices
    folders = {str(folder) for path in inside for folder in Path(path).parents} | {"/tmp"}
    words = ["--proc", "/proc"]
    for folder in sorted(folders - {"/"}):
        words += ["--dir", folder]  # those that bwrap makes by itself are closed to all but its own user
    for host, path in binds:
        words += ["--ro-bind", host, path]
    for device in devices:
        words += ["--dev-bind", device, device]
    for folder in hidden:
        words += ["--tmpfs", folder, "--remount-ro", folder]
    return words


def root_words(scratch: Path, own: Path, mounts: Sequence[tuple[str, str]]) -> list[str]:
    """For `bwrap_command`, where boxes get a root of their own (`boxed.rooted`): the zygote's folder `own` and the
    one around it, `scratch`; `mounts`, read-only; and what else a new root is made of."""
    folders = {str(folder) for _, inside in mounts for folder in Path(inside).parents} | {f"{HOME}/private"}
    words = [word for folder in sorted(folders - {"/"}) for word in ("--dir", folder)]
    words += ["--bind", str(scratch), rooted.SCRATCH, "--bind", str(own), rooted.NODE]
    for source, inside in mounts:
        words += ["--ro-bind", source, inside]
    return [*words, "--dev-bind-try", "/dev/tty", "/dev/tty", "--setenv", "PATH", rooted.PATH]
