"""Every rank of the learner but the first: does what rank 0 says, and ends when rank 0 does.

It has no endpoint of its own and writes nothing but its part of a checkpoint. Called by `__main__`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prorl_cli.errors import ProrlError, UserError
from prorl_cli.learner.lifeline import Command
from prorl_cli.learner.ranks import Place, place
from prorl_cli.learner.trainer import Diverged, Interrupted
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import current_attempt

if TYPE_CHECKING:
    from prorl_cli.learner.sharded import ShardedPolicy

log = logging.getLogger("learner")


def own_place(recipe: Recipe) -> Place:
    """Where this process stands among the learner's ranks."""
    here = place(os.environ, slurm=recipe.cluster.executor == "slurm")
    if here.ranks > 1 and recipe.learner.backend == "torch":
        raise UserError(f"learner.backend: torch is one process, but {here.ranks} ranks were started: use deepspeed")
    return here


def main() -> bool:
    """The life of a follower, if the environment says that this process is one."""
    try:
        run = RunDir.open(Path(sys.argv[1]))
        attempt = current_attempt(run)
        recipe = Recipe.model_validate_json(run.resolved(attempt).read_text())
        here = own_place(recipe)
    except (IndexError, ProrlError):
        # the learner proper meets the same and says it
        return False
    if here.rank == 0:
        return False
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, force=True,
        format=f"%(asctime)s %(levelname)s %(name)s rank {here.rank}: %(message)s",
    )  # fmt: skip
    # Slurm signals every task of a step, and when to stop is for rank 0 to say.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        _live(run, recipe, attempt, here)
    except ProrlError as error:
        log.error("%s", error)
        raise SystemExit(error.exit_code) from None
    return True


def _live(run: RunDir, recipe: Recipe, attempt: int, here: Place) -> None:
    from prorl_cli.learner.deepspeed_trainer import follow

    log.info("no role of its own: follows rank 0, whose endpoint is the learner's")
    policy, lifeline = follow(run, recipe, attempt, here)
    for command in lifeline.commands():
        with suppress(Interrupted, Diverged):
            _obey(policy, command)
    log.info("rank 0 has ended")


def _obey(policy: ShardedPolicy, command: Command) -> None:
    if command.do == "train":
        assert command.numbers is not None
        policy.train(command.shares, command.numbers, lambda: False)
    elif command.do == "digests":
        policy.digests()
    else:
        getattr(policy, command.do)(Path(command.folder))
