"""One role as one step of a Slurm job: the command that starts it, and how a step is asked to end.

A terminated `srun` kills its tasks at once and a killed one leaves them running, so both go through `scancel`, which
needs the step's id: a step carries its role's name, and Slurm is asked for the steps of that name.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prorl_cli.rundir import RunDir
from prorl_cli.slurm.child import Child, end_descendants
from prorl_cli.slurm.commands import SlurmError, slurm
from prorl_cli.slurm.plan import Process
from prorl_cli.slurm.script import step_command
from prorl_cli.slurm.topology import Topology
from prorl_cli.spool.members import Endpoint

STEP_GONE_S = 30.0
"""A step that was killed leaves the controller's list within seconds."""

DESCRIBES_A_STEP = frozenset(["CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "SLURMD_NODENAME"])
"""What Slurm set for the batch step; each step gets its own."""

NEEDED = re.compile(
    r"SLURM_(CONF|CONF_SERVER|JWT|CLUSTER_NAME|HET_SIZE|JOBID|RESTART_COUNT|SUBMIT_.*|JOB_(?!.*_PACK_GROUP_).*)"
)
"""Which of Slurm's variables `srun` needs. The others (`SLURM_MEM_PER_NODE`, `SLURM_NTASKS_PER_NODE`, `SLURM_CPU_BIND`)
are options that the batch step's own shape would force on every step."""


def srun_command(topology: Topology, process: Process, command: Sequence[str]) -> list[str]:
    """The argv that runs `command` on the nodes of `process`: everything said, nothing inherited."""
    placed = topology.of(process.component)
    nodes = placed.nodes[process.node : process.node + process.nodes]
    ranks = process.tasks // process.nodes
    cpus = max(1, min(placed.cpus[process.node : process.node + process.nodes]) // ranks)
    return [
        "srun", *([f"--het-group={placed.het_group}"] if placed.het_group >= 0 else []),
        f"--job-name={process.name}", f"--nodes={process.nodes}", f"--nodelist={','.join(nodes)}",
        f"--ntasks={process.tasks}", f"--ntasks-per-node={ranks}", f"--cpus-per-task={cpus}",
        f"--gres=gpu:{process.gpus}" if process.gpus else "--gres=none", "--mem=0", "--overlap",
        "--mpi=none", "--kill-on-bad-exit=1", "--input=none", "--export=ALL",
        *(["--label"] if process.tasks > 1 else []), *command,
    ]  # fmt: skip


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The batch step's environment without what would be an option of `srun`, or is true of the batch step only."""
    return {name: value for name, value in environment.items() if NEEDED.fullmatch(name) or not _slurms(name)}


def _slurms(name: str) -> bool:
    return name in DESCRIBES_A_STEP or name.startswith(("SLURM_", "SRUN_", "PMI"))


def role_code(code: int, log: str) -> int:
    """A role's exit code from that of its `srun`, over 128: 128 + signal is a signal, and of several ranks the first
    that ended tells why (the others were killed for it, and `srun` reports the highest code)."""
    first = re.search(r"srun: error: .*: tasks? [\d,-]+: Exited with exit code (\d+)", log)
    return int(first[1]) if first else 128 - code


class Step(Child):
    """A role's `srun`, as a child of the batch step."""

    def __init__(
        self, run: RunDir, attempt: int, process: Process, topology: Topology, command: Sequence[str]
    ) -> None:  # fmt: skip
        self._topology = topology
        self._log_start = _size(run.log(attempt, process.name))
        srun = srun_command(topology, process, command)
        super().__init__(run, attempt, process, srun, step_environment(os.environ))

    @property
    def code(self) -> int | None:
        """The role's exit code rather than that of `srun`."""
        code = self._popen.poll()
        return code if code is None or code <= 128 else role_code(code, self._own_words())

    def owns(self, endpoint: Endpoint) -> bool:
        """At most one step of a name runs, and its predecessors are buried."""
        return endpoint.slot == self.process.name

    def bury(self) -> None:
        """Nobody is dead whose step may still run."""
        killed = (self._popen.poll() or 0) < 0
        if not killed or end_steps(self._topology, [self.process.name]):
            super().bury()

    def _own_words(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(self._log_start, _size(self.log) - 65536))
            return file.read().decode(errors="replace")


def _size(log: Path) -> int:
    try:
        return log.stat().st_size
    except OSError:
        return 0


class Steps:
    """The `Starter` of a Slurm job: a role is a step on the nodes of its component."""

    tick_s = 0.5
    """The run's files are on a filesystem that many share."""

    def __init__(self, run: RunDir, attempt: int, topology: Topology, token: str) -> None:
        self._run, self._attempt, self._topology, self._token = run, attempt, topology, token

    def start(self, process: Process) -> Child:
        """Start `process` on its nodes."""
        command = step_command(self._run, self._token, process)
        return Step(self._run, self._attempt, process, self._topology, command)

    def terminate(self, children: Sequence[Child]) -> None:
        """Ask for an orderly end; whom Slurm cannot be asked about is killed after the grace."""
        names = [child.process.name for child in children if child.code is None]
        signal_steps(self._topology, names, "TERM")

    def kill(self, children: Sequence[Child]) -> None:
        """End the steps, then what is left of their `srun` here."""
        if names := [child.process.name for child in children if child.code is None]:
            end_steps(self._topology, names)
        for child in children:
            child.signal(signal.SIGKILL)
        end_descendants()


def steps_named(names: Iterable[str], listing: str) -> list[str]:
    """Ids (`JOB.STEP`) of the steps of these names in squeue's `id|name` lines."""
    wanted = set(names)
    rows = (line.partition("|") for line in listing.splitlines())
    return [step for step, _, name in rows if name.strip() in wanted]


def signal_steps(topology: Topology, names: Sequence[str], name: str) -> list[str]:
    """Send a signal to the steps of these names; returns the steps that there were."""
    if not names:
        return []
    try:
        listing = slurm(["squeue", "-h", "-s", "-o", "%i|%j", "-j", ",".join(map(str, topology.job_ids))])
        if steps := steps_named(names, listing):
            slurm(["scancel", f"--signal={name}", *steps])
    except SlurmError:
        return list(names)  # nobody answered: they may still be there
    return steps


def end_steps(topology: Topology, names: Sequence[str]) -> bool:
    """Kill the steps of these names; whether they are gone for certain."""
    deadline = time.monotonic() + STEP_GONE_S
    while signal_steps(topology, names, "KILL"):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True
