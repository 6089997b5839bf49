"""`python -m prorl_cli.router RUN_DIR`."""

from prorl_cli.role import main
from prorl_cli.router.service import body

main("router", body)
