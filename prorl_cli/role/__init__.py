"""One process of a run: its identity, endpoint and heartbeat, its doorbell, named waits, signals and orderly end.

Every role (coordinator, router, rollout, engine, learner) is `main(kind, body)`; a role never asks how it was started.
"""

from prorl_cli.role.entry import main
from prorl_cli.role.role import Role

__all__ = ["Role", "main"]
