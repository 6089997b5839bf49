"""`python -m tests.cluster.keeper FOLDER`: starts the test cluster there, and ends all of it when stdin closes.

A process of its own, so that whatever happens to the tests (a kill included) no daemon and no job outlives them. By hand:
`python -m tests.cluster.keeper /tmp/FOLDER`, then `export SLURM_CONF=/tmp/FOLDER/slurm.conf` elsewhere; Ctrl-D ends it.
Lines on stdin: `kill NODE` ends a node's daemon and everything on it at once, `start NODE` starts it again.
"""

import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from tests.cluster.configuration import NODES, Place, daemons, gres_conf, slurm_conf

PR_SET_CHILD_SUBREAPER = 36

PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class Keeper:
    def __init__(self, folder: Path):
        host = socket.gethostname().split(".")[0]
        user = pwd.getpwuid(os.getuid()).pw_name
        self.place = Place(folder=folder, host=host, user=user, ports=free_ports(1 + len(NODES)))
        self.commands = daemons(self.place)
        self.running: dict[str, subprocess.Popen] = {}

    def start_all(self):
        lay_out(self.place)
        self.start("munged")
        wait_for(self.place.socket.exists, "munged's socket")
        self.start("slurmctld")
        for node in NODES:
            self.start(node)
        wait_for(self.idle, "idle nodes")

    def start(self, name):
        program, *arguments = self.commands[name]
        with (self.place.folder / f"log/{name}.out").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [shutil.which(program, path=PATH), *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment(self.place),
            )  # fmt: skip

    def kill(self, node):
        """As when the power fails: the daemon first, so that it reports nothing."""
        self.running[node].kill()
        self.running[node].wait()
        for process in processes_of_node(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def idle(self):
        command = ["sinfo", "-h", "-N", "-p", "cpu,gpu", "-o", "%N %T"]
        found = subprocess.run(command, env=environment(self.place), capture_output=True, text=True)
        return sorted(found.stdout.split("\n")[:-1]) == [f"{node} idle" for node in NODES]

    def obey(self, line):
        order, node = line.split()
        {"kill": self.kill, "start": self.start}[order](node)
        print("done", flush=True)


def processes_of_node(node):
    """`slurmstepd` holds the processes of one step on one node, and those carry their node's name."""
    for holder in psutil.Process().children(recursive=True):
        try:
            if holder.name() == "slurmstepd":
                held = holder.children(recursive=True)
                if any(names_node(process, node) for process in held):
                    yield from (holder, *held)
        except psutil.NoSuchProcess:
            continue


def names_node(process, node):
    try:
        return process.environ().get("SLURMD_NODENAME") == node
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def lay_out(place: Place):
    """Every folder above munge's socket must be passable by everybody, or munged refuses to start."""
    place.folder.chmod(0o755)
    for name in ("munge", "run", "spool", "state", "log", "dev"):
        (place.folder / name).mkdir(mode=0o755)
    key = place.folder / "munge/key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    for number, device in enumerate(("/dev/null", "/dev/zero")):
        (place.folder / f"dev/gpu{number}").symlink_to(device)
    place.conf.write_text(slurm_conf(place))
    (place.folder / "gres.conf").write_text(gres_conf(place))


def environment(place: Place):
    return {"PATH": PATH, "SLURM_CONF": str(place.conf), "LC_ALL": "C.UTF-8"}


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return tuple(opened.getsockname()[1] for opened in sockets)
    finally:
        for opened in sockets:
            opened.close()


def wait_for(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"the test cluster did not start: no {what} within {seconds} s")
        time.sleep(0.1)


def end_all():
    """Until nothing is left: `slurmstepd` detaches itself, and what it leaves behind becomes a child of this process."""
    while children := psutil.Process().children(recursive=True):
        for process in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(children, timeout=1)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = Keeper(Path(sys.argv[1]))
    try:
        keeper.start_all()
        print("ready", flush=True)
        for line in sys.stdin:
            keeper.obey(line)
    finally:
        end_all()


if __name__ == "__main__":
    main()
