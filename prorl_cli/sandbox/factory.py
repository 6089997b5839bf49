"""Opens the boxes of one worker: picks the runtime, keeps one warmed parent alive, starts boxes from it.

Refuses runtimes that this machine or this version cannot serve, in words that say what to do. `auto` takes bwrap
where a trial box works, else `process`. Called by the rollout worker; calls nothing above the sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from prorl_cli.errors import InfraError, UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import capabilities, janitor, root
from prorl_cli.sandbox.apptainer import ContainerEach, OneContainer
from prorl_cli.sandbox.box import Box
from prorl_cli.sandbox.parent import Parent
from prorl_cli.sandbox.runtimes import Bwrap, Process, Runtime
from prorl_cli.trajectory import ErrorClass

log = logging.getLogger(__name__)


async def open_boxes(
    sandbox: Sandbox, *, scratch: Path, serve: Collection[str] = ("calculator",), tools: Sequence[Path] = ()
) -> BoxFactory:
    """A factory with a warm parent. `scratch`: a folder on this node's own disk; `serve`: prorl's tools that are
    wanted; `tools`: folders of further tools.

    Raises `UserError` where the recipe's runtime cannot be had.
    """
    await asyncio.to_thread(janitor.clean, scratch)
    wanted = root.Tools(serve=tuple(serve), folders=tuple(tools))
    match sandbox.runtime:
        case "process":
            capabilities.check("process", sandbox, serve)
            return await opened_in(Process(wanted), sandbox, scratch)
        case "apptainer":
            return await _opened_in_containers(wanted, sandbox, scratch)
    try:
        return await _opened_walled(Bwrap(wanted, sandbox.image), sandbox, scratch)
    except UserError as error:
        if sandbox.runtime == "bwrap":
            raise
        log.warning("%s; boxes run as plain processes", error)
        capabilities.check("process", sandbox, serve)
        return await opened_in(Process(wanted), sandbox, scratch)


async def _opened_in_containers(wanted: root.Tools, sandbox: Sandbox, scratch: Path) -> BoxFactory:
    """In one that failed twice boxes cannot be: the first time it may have been a busy node."""
    one = OneContainer(wanted, sandbox)
    for _ in range(2):
        try:
            return await opened_in(one, sandbox, scratch)
        except (InfraError, UserError) as error:
            because = error.what if isinstance(error, InfraError) else str(error)
    return await _opened_walled(ContainerEach(wanted, sandbox, because), sandbox, scratch)


async def _opened_walled(runtime: Runtime, sandbox: Sandbox, scratch: Path) -> BoxFactory:
    try:
        return await opened_in(runtime, sandbox, scratch)
    except (InfraError, UserError) as error:
        what = error.what if isinstance(error, InfraError) else error
        name = f"sandbox.runtime: {runtime.name}"
        raise UserError(f"{name} does not work on this machine ({what}); {runtime.remedy}") from error


async def opened_in(runtime: Runtime, sandbox: Sandbox, scratch: Path) -> BoxFactory:
    """A factory of boxes in this very runtime, one of which was tried. Raises `UserError`, `InfraError`."""
    factory = BoxFactory(runtime, sandbox, scratch)
    try:
        await (await factory.start()).close()  # the kernel may grant the parent its walls and refuse a box its own
    except BaseException:
        await factory.close()
        raise
    return factory


class BoxFactory:
    """Starts boxes for one worker; `runtime` is its runtime's name, `image` what records say the calls ran in."""

    def __init__(self, runtime: Runtime, sandbox: Sandbox, scratch: Path) -> None:
        self.runtime, self.image = runtime.name, runtime.image
        self._how = runtime
        self._sandbox = sandbox
        self._scratch = scratch
        self._parent: Parent | None = None
        self._launching = asyncio.Lock()
        self._closed = False
        self._was_up = False

    @property
    def note(self) -> str:
        """What this node refuses and boxes do without, in words."""
        return self._parent.note if self._parent else ""

    async def start(self, like: Box | None = None) -> Box:
        """A new box; one that begins with all that `like` has written to disk, while that is still there.

        Raises `InfraError` (sandbox), also where boxes keep nothing on disk.
        """
        parent = await self._living_parent()
        try:
            return await Box.start(parent, like)
        except InfraError:
            if not parent.lost or self._closed or like:
                raise
        return await Box.start(await self._living_parent())

    async def _living_parent(self) -> Parent:
        async with self._launching:
            if self._closed:
                raise InfraError(ErrorClass.SANDBOX, "the boxes are closed")
            if self._parent and self._parent.lost:
                log.warning("the boxes' parent process is gone (%s); starting another", self._parent.last_words)
                await self._parent.close()
                await asyncio.to_thread(janitor.clean, self._scratch)
                self._parent = None
            if not self._parent:
                self._parent = await self._launch()
            return self._parent

    async def _launch(self) -> Parent:
        """What has worked before, and does not, is no mistake of the user's any more."""
        try:
            parent = await Parent.launch(self._how, self._sandbox, self._scratch)
        except UserError as error:
            if not self._was_up:
                raise
            raise InfraError(ErrorClass.SANDBOX, str(error)) from error
        self._was_up = True
        return parent

    async def close(self) -> None:
        """End every box and the parent, and wait for it; twice is fine."""
        self._closed = True
        async with self._launching:
            if self._parent:
                await self._parent.close()
                await asyncio.to_thread(janitor.clean, self._scratch)
