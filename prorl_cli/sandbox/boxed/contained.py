"""Boxes within one container: the runtime starts the zygote from their image, and each box is a fork of it.

The zygote walls itself in once more, as a box with a container of its own does (`furnished`); its boxes have namespaces
and a root of their own, as below bwrap. Refuses a node whose kernel denies them an overlay there. Called by `zygote`.
"""

from __future__ import annotations

import os
from typing import Any

from prorl_cli.sandbox.boxed import furnished, isolation, rooted
from prorl_cli.sandbox.boxed.forked import Walled


class Contained(Walled):
    """`hidden` folders of prorl's are covered; boxes find the rest as the runtime has mounted it."""

    look_ms: int | None = 1000

    def __init__(self, config: dict[str, Any]) -> None:
        furnished.refuse_without_walls()
        furnished.keep_images_environment()
        self._hidden: list[str] = config["hidden"]
        super().__init__(config)

    def prepare(self) -> None:
        isolation.enter_namespaces(furnished.KINDS, os.geteuid(), os.getegid())
        isolation.keep_mounts_private()
        isolation.close_off(rooted.PRORL, self._hidden)
        super().prepare()

    def sound(self) -> bool:
        """The daemon that serves a packed image may die, and a folder be tidied away."""
        assert self._root, "an image"
        try:
            os.statvfs(self._root.lower)
            os.stat(rooted.STAGE)  # noqa: PTH116 - see `isolation._write`
        except OSError:
            return False
        return True

    def _do_without(self, why: str) -> None:
        """Rather a container for each box, where the runtime finds other ways to keep what it writes."""
        raise OSError(f"no overlay in a container: {why}")
