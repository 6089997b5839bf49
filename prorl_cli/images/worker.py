"""An image by the path that a run recorded, for a node that runs its boxes: held while they run, copied once a node.

A path that is in no cache is used as it is. Called by the rollout worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.images.manifest import Image, object_name
from prorl_cli.images.stage import used
from prorl_cli.images.store import Store

log = logging.getLogger(__name__)


@contextmanager
def near(path: Path, folder: Path) -> Iterator[Path]:
    """Its copy on this node's own disk, unpacked in `folder`. While the block lasts no worker removes the copy, nor
    `prorl cache gc` the image; in a cache that this user cannot write, it is used all the same. Raises `UserError`."""
    found = stored(path)
    if found is None:
        yield path
        return
    store, image = found
    with ExitStack() as use:
        try:
            use.enter_context(store.hold(image))
        except UserError as error:
            stored(path)  # gone meanwhile: that is another matter
            log.warning("%s is used without a mark: %s", path, error)
        yield use.enter_context(used(image, folder))


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
