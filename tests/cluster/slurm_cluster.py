"""The test cluster as a test sees it: commands to Slurm, and faults of its nodes."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.keeper import PATH
from tests.quick_run import ROOT

TERMINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE")


class SlurmCluster:
    """A private Slurm; its owner is whoever runs the tests, who is therefore its administrator too."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="prorl-slurm-", dir="/tmp"))
        command = [sys.executable, "-m", "tests.cluster.keeper", str(self.folder)]
        self._keeper = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._answer("ready")

    @property
    def conf(self):
        return str(self.folder / "slurm.conf")

    def close(self):
        self._keeper.stdin.close()
        self._keeper.wait(60)
        self._keeper.stdout.close()
        shutil.rmtree(self.folder)

    def run(self, *command, check=True, **options):
        """A Slurm command's output."""
        program, *arguments = map(str, command)
        done = subprocess.run(
            [shutil.which(program, path=PATH), *arguments],
            capture_output=True, text=True, env={**os.environ, "SLURM_CONF": self.conf}, timeout=60, **options,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def submit(self, script: Path):
        return int(self.run("sbatch", "--parsable", script, cwd=script.parent))

    def state(self, job):
        """As Slurm says it now, `GONE` when it knows the job no more."""
        shown = self.run("scontrol", "show", "job", job, "-o", check=False)
        return dict(word.partition("=")[::2] for word in shown.split() if "=" in word).get("JobState", "GONE")

    def jobs(self):
        """Ids of every job that is queued or running, components apart."""
        return [int(line) for line in self.run("squeue", "-h", "-o", "%A").split()]

    def wait(self, job, states, seconds=60):
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state} after {seconds} s, not {' or '.join(states)}"
            time.sleep(0.2)
        return state

    def node_state(self, node):
        return self.run("sinfo", "-h", "-n", node, "-p", "cpu,gpu", "-o", "%T").strip()

    def down(self, node):
        """The administrator takes a node away from its jobs."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def up(self, node):
        """Back in service; a node that has come back by itself already is fine."""
        self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self._wait_node(node, "idle")

    def kill_node(self, node):
        """The node's power fails: its daemon and every process of its jobs end at once, and nobody says so."""
        self._order(f"kill {node}")

    def start_node(self, node):
        self._order(f"start {node}")
        self.up(node)

    def clear(self):
        """No job, and every node idle."""
        if self.jobs():
            self.run("scancel", "--me")
        deadline = time.monotonic() + 60
        while self.jobs():
            assert time.monotonic() < deadline, self.run("squeue")
            time.sleep(0.2)

    def _wait_node(self, node, state, seconds=60):
        deadline = time.monotonic() + seconds
        while (found := self.node_state(node)) != state:
            assert time.monotonic() < deadline, f"{node} is {found}, not {state}"
            time.sleep(0.2)

    def _order(self, line):
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()
        self._answer("done")

    def _answer(self, expected):
        answer = self._keeper.stdout.readline().strip()
        assert answer == expected, f"the cluster's keeper said {answer!r}; its logs: {self.folder}/log"


def works_here():
    """Whether Slurm's daemons are installed and several slurmd may run on one host."""
    return all(shutil.which(program, path=PATH) for program in ("munged", "slurmctld", "slurmd", "sbatch"))
