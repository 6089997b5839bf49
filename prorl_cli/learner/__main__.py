"""`python -m prorl_cli.learner RUN_DIR`."""

from prorl_cli.learner.loop import live
from prorl_cli.role import main

if __name__ == "__main__":
    main("learner", live)
