"""An image by the path that a run recorded, for the nodes that run its boxes: held while they run, copied once a node.

A path that is in no cache is used as it is. Called by the rollout worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.images.manifest import Image, object_name
from prorl_cli.images.store import Store

log = logging.getLogger(__name__)


def stored(path: Path) -> tuple[Store, Image] | None:
    """The cache and the image of a path below its `objects`; None for any other path. Raises `UserError`."""
    digest = path.name.removeprefix("sha256-").removesuffix(".sif")
    if path.parent.name != "objects" or path.name != object_name(digest):
        return None
    store = Store(path.parent.parent)
    image = store.of_digest(digest)
    if image is None:
        raise UserError(f"{path} is gone or damaged: `prorl cache build` makes it anew")
    return store, image


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """`prorl cache gc` does not remove the image while the block lasts. Raises `UserError`.

    In a cache that this user cannot write, the image is used all the same.
    """
    found = stored(path)
    with ExitStack() as use:
        if found:
            try:
                use.enter_context(found[0].hold(found[1]))
            except UserError as error:
                stored(path)
                log.warning("%s is used without a mark: %s", path, error)
        yield


def stage(path: Path, folder: Path, *, unpacked: bool = False) -> Path:
    """Its copy on this node's own disk. Raises `UserError`."""
    found = stored(path)
    return path if found is None else found[0].stage(found[1], folder, unpacked=unpacked)
