"""The command that opens a shell beside a role, on the node and in the component where it runs. Pure.

Called by `prorl attach`.
"""

from __future__ import annotations

from prorl_cli.slurm.plan import Process
from prorl_cli.slurm.topology import Topology

BESIDE = ("--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--mpi=none", "--export=ALL", "--pty", "bash")
"""It takes nothing from the job: a step that waits for resources of its own would wait until the run ends."""


def attach_command(topology: Topology, process: Process) -> list[str]:
    """The argv for a process of the job itself; Slurm knows a component's nodes only by the leader's id."""
    placed = topology.of(process.component)
    group = [f"--het-group={placed.het_group}"] if placed.het_group >= 0 else []
    return ["srun", f"--jobid={topology.job_id}", *group, f"--nodelist={placed.nodes[process.node]}", *BESIDE]


def attach_satellite(job_id: int) -> list[str]:
    """The argv for a rollout worker that is a job of its own."""
    return ["srun", f"--jobid={job_id}", *BESIDE]
