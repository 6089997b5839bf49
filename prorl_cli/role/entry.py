"""`python -m prorl_cli.<room> RUN_DIR`: from an argument to a running `Role`, and from its end to an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from prorl_cli.errors import ProrlError
from prorl_cli.recipe import Recipe
from prorl_cli.role.role import Role
from prorl_cli.rundir import Incarnation, RunDir
from prorl_cli.spool.members import DEVICES, current_attempt

VISIBLE = "CUDA_VISIBLE_DEVICES"


def main(kind: str, body: Callable[[Role], Awaitable[None]]) -> None:
    """Run `body` as role `kind` of the run directory named by the only argument; exits the process."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    if len(sys.argv) != 2:
        raise SystemExit(f"usage: python -m prorl_cli.{kind} RUN_DIR")
    try:
        if wanted := os.environ.get(DEVICES):
            os.environ[VISIBLE] = own_devices(wanted, os.environ.get(VISIBLE, ""))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(kind, Path(sys.argv[1]), body))
    except ProrlError as error:
        logging.getLogger(kind).error("%s", error)
        raise SystemExit(error.exit_code) from None


def own_devices(wanted: str, shown: str) -> str:
    """Of the GPUs that this node shows (all, when it names none), those at the positions that the plan gave."""
    if not shown:
        return wanted
    there, positions = shown.split(","), [int(position) for position in wanted.split(",")]
    if max(positions) >= len(there):
        raise ProrlError(
            f"the plan gives GPU number {max(positions)} of this node to this process; it shows only {shown}"
        )
    return ",".join(there[position] for position in positions)


async def _live(kind: str, root: Path, body: Callable[[Role], Awaitable[None]]) -> None:
    run = RunDir.open(root)
    attempt = current_attempt(run)
    recipe = Recipe.model_validate_json(run.resolved(attempt).read_text())
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    async with Role(run, recipe, Incarnation.new(kind, node, attempt)) as role:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, role.stopping.set)
        working = asyncio.ensure_future(body(role))
        await asyncio.wait({working, role.broken}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            role.broken.result()
        working.result()
