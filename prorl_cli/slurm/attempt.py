"""The beginning of an attempt, the same for every way of running: claimed, its recipe said, its logs the latest."""

from __future__ import annotations

import os
import socket
from typing import Any

import psutil

from prorl_cli import fsio
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import claim_attempt, order_restore


def begin(
    run: RunDir, recipe: Recipe, *, after: int | None = None, restore: int | None = None, **about: Any
) -> int:  # fmt: skip
    """Claim the attempt behind `after` (else behind the newest) for this process; returns its number."""
    me = {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": psutil.Process().create_time()}
    number = claim_attempt(run, {**me, **about}, after=after)
    if restore is not None:
        order_restore(run, number, restore)
    fsio.make_folder(run.logs / str(number))
    _point_latest_logs(run, number)
    # last: a satellite takes the attempt for begun when this is there
    fsio.publish(run.resolved(number), recipe.model_dump_json(indent=2).encode())
    return number


def read_resolved(run: RunDir, attempt: int) -> Recipe | None:
    """The recipe with which an attempt began; None before it has."""
    data = fsio.read(run.resolved(attempt))
    return None if data is None else Recipe.model_validate_json(data)


def _point_latest_logs(run: RunDir, attempt: int) -> None:
    temporary = run.logs / f".latest-{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(str(attempt))
    temporary.replace(run.latest_logs)
