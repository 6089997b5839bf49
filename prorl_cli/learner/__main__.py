"""`python -m prorl_cli.learner RUN_DIR`: the learner, or one of its further ranks."""

from prorl_cli.learner import follower
from prorl_cli.learner.loop import live
from prorl_cli.role import main

if __name__ == "__main__" and not follower.main():
    main("learner", live)
