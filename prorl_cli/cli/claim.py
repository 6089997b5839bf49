"""An attempt belongs to one `launch` or `resume`: exclusive, and refused while another is at work."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import psutil

from prorl_cli.errors import UserError
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import BEAT_S, claim_attempt, current_attempt, read_claim, read_endpoints, read_outcome


def claim(run: RunDir) -> int:
    """Take the next attempt; `UserError` when another process of this run is at work, `Fenced` when it was quicker."""
    previous = current_attempt(run)
    _refuse_if_at_work(run, previous)
    mine = {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": psutil.Process().create_time()}
    return claim_attempt(run, mine, after=previous)


def _refuse_if_at_work(run: RunDir, previous: int) -> None:
    if at_work(run, previous):
        owner = read_claim(run, previous) or {}
        raise UserError(
            f"{run.root} is already running (process {owner['pid']} on {owner['host']}, attempt {previous}): "
            f"stop it first with `prorl stop {run.root}`"
        )


def at_work(run: RunDir, attempt: int) -> bool:
    """Whether the launch of `attempt` is still there: its process on this machine, or heartbeats from another."""
    owner = read_claim(run, attempt)
    if owner is None:
        return False
    if owner["host"] == socket.gethostname():
        return _same_process(owner)
    return read_outcome(run, attempt) is None and _hearts_beat(run, attempt)


def _same_process(owner: dict[str, Any]) -> bool:
    try:
        process = psutil.Process(owner["pid"])
        started = float(owner["pid_started"])
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _hearts_beat(run: RunDir, attempt: int) -> bool:
    """Whether any process of the attempt still writes heartbeats: two looks, three beats apart."""
    first = {peer.incarnation: peer.beat for peer in read_endpoints(run) if peer.attempt == attempt}
    time.sleep(3 * BEAT_S)
    return any(first.get(peer.incarnation, peer.beat) != peer.beat for peer in read_endpoints(run))
