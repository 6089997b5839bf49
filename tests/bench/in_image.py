"""Peers in the very image that boxes run in: prorl's own Python with their packages, and tmux, bound into it."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

from prorl_cli.sandbox import root
from tests.images import image

PEERS = Path(__file__).with_name("shell_peers.py")
INSIDE = "/.prorl/peers"


class Peer:
    """One peer's shell in the image, asked for commands; use as a context manager."""

    def __init__(self, kind):
        self._process = subprocess.Popen(
            [*_exec(), *_python(), f"{INSIDE}/shell_peers.py", kind, *(_tmux() if kind == "tmux" else ())],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def seconds(self, commands):
        """Of each."""
        print(json.dumps(commands), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


def packages():
    """The folders that SWE-ReX and all it needs were installed in; none where it is not there."""
    return [path for path in sys.path if path.endswith("-packages")] if importlib.util.find_spec("swerex") else []


def kinds():
    """The peers that this machine has."""
    return [kind for kind, there in (("swe-rex", packages()), ("tmux", shutil.which("tmux"))) if there]


def _python():
    python = root.find_python(root.interpreter())
    inside = [f"{INSIDE}/packages/{number}" for number, _ in enumerate(packages())]
    path = f"import sys, runpy; sys.path += {inside}; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return python.command("-c", path)


def _tmux():
    return [f"{root.HOME}/python/loader", "--library-path", f"{INSIDE}/libraries", f"{INSIDE}/tmux"]


def _exec():
    """As walled as a box, for what the walls cost is everybody's."""
    python = root.find_python(root.interpreter())
    binds = [*python.binds, *_libraries(), (str(PEERS), f"{INSIDE}/shell_peers.py")]
    binds += [(folder, f"{INSIDE}/packages/{number}") for number, folder in enumerate(packages())]
    if tmux := shutil.which("tmux"):
        binds.append((tmux, f"{INSIDE}/tmux"))
    mounts = [
        word for source, inside in binds for word in ("--mount", f"type=bind,source={source},destination={inside},ro")
    ]
    walls = ["--userns", "--containall", "--cleanenv", "--no-home", "--writable-tmpfs", "--pwd", "/"]
    return ["apptainer", "--quiet", "exec", *walls, *mounts, str(image("folder"))]


def _libraries():
    """What tmux is linked with; and the libraries of compiled packages that Python itself does not need."""
    python = root.find_python(root.interpreter())
    known = {inside for _, inside in python.binds}
    compiled = [str(path) for folder in packages() for path in Path(folder).glob("pydantic_core/*.so")]
    for program, folder in (
        (shutil.which("tmux"), f"{INSIDE}/libraries"),
        *((so, f"{root.HOME}/python/shared") for so in compiled),
    ):
        for path, name in _linked(program).items() if program else ():
            if name and f"{folder}/{name}" not in known:
                known.add(f"{folder}/{name}")
                yield path, f"{folder}/{name}"


def _linked(program):
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return root.linked_libraries(listing)
