"""What every engine agrees on about versions: which one is the newest, and whose turn it is to swap.

Imports no model library: a supervisor of a server in another process lives by it too. Called by `follow` and `vllm`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from prorl_cli.errors import CorruptRecord, ProrlError
from prorl_cli.role import Role
from prorl_cli.rundir import RunDir
from prorl_cli.spool.weights import WeightManifest, latest_weights, read_weights
from prorl_cli.wire import WireError

POLL_S = 1.0
"""Between two looks at the weights folder where no doorbell rang."""

NO_ROUTER_S = 5.0
"""Without a router there is nobody to agree with: swap after this long."""

PERMIT_POLL_S = 0.2
"""Between two requests for a permit: a swap of the other engines takes a fraction of a second."""

RENEW_S = 20.0
"""A third of a permit's life."""

CALL_S = 2.0
"""Deadline of one call to the router."""

DRAIN_S = 10.0
"""What is in flight at SIGTERM may finish for this long; well under the 30 s before Slurm kills."""

ACCOUNT_S = 0.5
"""Slices in which busy time is counted, so that `status` sees it while it lasts."""

Published = tuple[Path, WeightManifest]


T = TypeVar("T")


class Unproved(ProrlError):
    """Weights that are not, byte for byte, what their manifest says, or that do not compute what they should."""


async def first(role: Role) -> Published | None:
    """The newest version, as soon as there is one; None when the process is asked to stop before."""
    with role.waiting("the first weights"):
        while not role.stopping.is_set():
            if (published := await newest(role)) is not None:
                return published
            await role.nap(POLL_S)
    return None


async def newest(role: Role) -> Published | None:
    """Folder and manifest of the newest version; None before there is one. A second look before it is believed
    corrupt: retention may have taken the folder away between the listing and the read."""

    def look() -> Published | None:
        return read_weights(role.run, latest_weights(role.run))

    with suppress(CorruptRecord):
        return await asyncio.to_thread(look)
    return await asyncio.to_thread(look)


async def stage(
    role: Role, published: Published, read: Callable[[Path, WeightManifest], T]
) -> tuple[T, WeightManifest]:
    """`read` a version and check it. One that cannot be proved is looked for once more, as it is then the newest:
    retention may have taken it away while it was read."""
    with suppress(Unproved):
        return await asyncio.to_thread(read, *published), published[1]
    again = await newest(role) or published
    return await asyncio.to_thread(read, *again), again[1]


def newest_identity(run: RunDir) -> tuple[int, str]:
    """Version and lineage of the newest weights, from names alone; (-1, "") before there are any."""
    version, lineage = max(run.weight_folders().items(), default=(-1, ""))
    return version, lineage


async def permit(role: Role, version: int) -> bool:
    """Wait until the router lets this engine swap: for nobody when there is no router, and at most as long as a group
    may hold a version back. False when the process is asked to stop first."""
    deadline = time.monotonic() + role.recipe.rollout.deadline
    alone = time.monotonic() + NO_ROUTER_S
    with role.waiting(f"a permit to swap to version {version}"):
        while not role.stopping.is_set():
            granted = await _ask(role, "permits", {"engine": role.name, "version": version})
            now = time.monotonic()
            if granted is not None:
                alone = now + NO_ROUTER_S
            if (granted and granted["granted"]) or now > min(alone, deadline):
                return True
            await role.nap(PERMIT_POLL_S)
    return False


@asynccontextmanager
async def renewed(role: Role, version: int) -> AsyncIterator[None]:
    """Keep the permit for as long as the block lasts: a large model loads for longer than a permit lives."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await _ask(role, "permits", {"engine": role.name, "version": version})

    renewing = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        renewing.cancel()


async def release(role: Role) -> None:
    """Tell the router that the swap is over; a lost word is made good by the permit's ttl."""
    await _ask(role, "permits/release", {"engine": role.name})


async def _ask(role: Role, path: str, body: dict[str, Any]) -> Any:
    """The router's answer, or None when none answers."""
    routers = sorted((peer for peer in role.endpoints("router") if peer.url), key=lambda peer: peer.pid_started)
    for peer in reversed(routers):
        with suppress(WireError):
            return await role.client.call("POST", f"{peer.url}/{path}", body, deadline_s=CALL_S)
    return None
