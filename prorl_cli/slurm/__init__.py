"""From a recipe to running roles: the plan of processes, and the ways to start and watch them.

Refuses to look inside a role: what runs is `python -m prorl_cli.<room> RUN_DIR`, whoever starts it.
"""

from prorl_cli.slurm.plan import Plan, Process, plan_processes
from prorl_cli.slurm.supervisor import Watch, supervise

__all__ = ["Plan", "Process", "Watch", "plan_processes", "supervise"]
