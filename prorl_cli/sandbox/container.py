"""What is said to Apptainer or Singularity: which program, the walls, the mounts, and an environment of nobody's.

prorl's code and its own interpreter are mounted read-only below `/.prorl`, so that an image needs neither Python nor
anything else of ours. Refuses a machine without either program. Called by `apptainer`, `images` and `report`.
"""

from __future__ import annotations

import compileall
import csv
import functools
import io
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.sandbox import flavour, root
from prorl_cli.sandbox.boxed.launched import START_S

PROGRAMS = ("apptainer", "singularity")

_WALLS = [
    *("--userns", "--containall", "--cleanenv", "--no-home", "--no-init", "--no-eval"),
    *("--net", "--network", "none", "--no-mount", "home,cwd,tmp,sys,bind-paths,hostfs", "--pwd", "/"),
]
# --no-init: the container's first process is prorl's, out of reach of `kill -9 -1`; the runtime's own would show its
# configuration in /proc/1/environ. --net as well as --network: older ones do nothing without it.


def find_program() -> str:
    """Apptainer, or Singularity where there is none. Raises `UserError`."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if not found:
        raise UserError("neither apptainer nor singularity is installed (or in PATH: is a module to be loaded?)")
    return found


@functools.cache
def _prefix_of(program: str) -> str:
    """Of its environment variables. Raises `UserError` for a version that boxes cannot run in."""
    return flavour.read_for_boxes(run([program, "--version"], {"PATH": root.CLEAN["PATH"], "HOME": "/"})[1]).prefix


def run(command: Sequence[str], environment: dict[str, str]) -> tuple[int, str]:
    """Its exit code, and what it said."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def environment(program: str, own: Path) -> dict[str, str]:
    """The launcher's whole environment: no proxy, no bus (#3607), nothing that it would take as an option of ours.

    What it keeps and unpacks goes to the zygote's folder, not to a home that every node shares. Raises `UserError` for
    a version that boxes cannot run in.
    """
    path = f"{Path(program).parent}:{root.CLEAN['PATH']}"
    kept = {f"{_prefix_of(program)}_{name}": str(own) for name in ("CONFIGDIR", "TMPDIR")}
    return {"PATH": path, "LANG": root.CLEAN["LANG"], "HOME": str(own), **kept}


def walled(program: str, python: root.Python, tools: root.Tools) -> list[str]:
    """The first words of a command that runs in a container with all that is prorl's. It may write no bytecode there,
    so that is made before."""
    compileall.compile_dir(root.PACKAGE / "sandbox" / "boxed", quiet=2)
    mounts = [word for bind in root.prorl_binds(python, tools) for word in mount(*bind, "ro")]
    return [program, "exec", *_WALLS, *mounts]


def mount(source: str, inside: str, *how: str) -> list[str]:
    """Its words; quoted, for a path may hold commas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(["type=bind", f"source={source}", f"destination={inside}", *how])
    return ["--mount", text.getvalue()]


def mount_image(program: str, image: Path, inside: str) -> list[str]:
    """The same for the root that an image holds, packed or not. Raises `UserError` for a file that is no SIF."""
    if image.is_dir():
        return mount(str(image), inside, "ro")
    number = flavour.system_partition(run([program, "sif", "list", str(image)], root.CLEAN)[1])
    return mount(str(image), inside, "image-src=/", f"id={number}")
