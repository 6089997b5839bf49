"""From a recipe to running roles: the plan of processes, and the ways to start and watch them.

Refuses to look inside a role: what runs is `python -m prorl_cli.<room> RUN_DIR`, whoever starts it.
"""

from prorl_cli.slurm.local import supervise
from prorl_cli.slurm.plan import Plan, Process, plan_processes

__all__ = ["Plan", "Process", "plan_processes", "supervise"]
