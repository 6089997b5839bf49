"""The boxes of one worker: its image held in the cache, copied to the node once, and the factory that starts from it.

Called by `parts`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from prorl_cli import images
from prorl_cli.errors import RunDirError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import BoxFactory, open_boxes


@asynccontextmanager
async def opened_boxes(sandbox: Sandbox, serve: Sequence[str]) -> AsyncIterator[BoxFactory]:
    """A factory with a warm parent, whose boxes serve those tools. Raises `UserError`."""
    image = ExitStack()
    staging = asyncio.ensure_future(asyncio.to_thread(_near, sandbox, image))
    try:
        boxes = await open_boxes(await asyncio.shield(staging), scratch=scratch_folder(), serve=serve)
        # Records name the image, wherever its copy lies.
        boxes.image = sandbox.image or boxes.image
        try:
            yield boxes
        finally:
            await boxes.close()
    finally:
        await asyncio.wait({staging})  # a thread is not cancelled: it may still enter what is to be left here
        await asyncio.to_thread(image.close)


def _near(sandbox: Sandbox, use: ExitStack) -> Sandbox:
    """With the copy of its image on this node's disk, where the image is one of the cache; it stays for later runs.

    Unpacked: of a packed one, what belongs to root (a repository in /testbed) cannot be changed in a box, and bwrap
    reads none.
    """
    if not sandbox.image:
        return sandbox
    copy = use.enter_context(images.near(Path(sandbox.image), scratch_folder() / "images"))
    return sandbox.model_copy(update={"image": str(copy)})


def scratch_folder() -> Path:
    """This user's folder on the node's own disk, where leftovers of killed workers are found again and removed."""
    folder = Path(tempfile.gettempdir()) / f"prorl-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise RunDirError(f"{folder} belongs to somebody else: remove it, or point TMPDIR elsewhere")
    return folder
