"""`python -m prorl_cli.coordinator RUN_DIR`."""

from prorl_cli.coordinator.process import body
from prorl_cli.role import main

main("coordinator", body)
