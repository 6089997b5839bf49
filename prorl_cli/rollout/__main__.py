"""`python -m prorl_cli.rollout RUN_DIR`."""

from prorl_cli.role import main
from prorl_cli.rollout.worker import body

main("rollout", body)
