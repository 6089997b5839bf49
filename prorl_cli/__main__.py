"""`python -m prorl_cli` is `prorl`."""

from prorl_cli.cli import main

main()
