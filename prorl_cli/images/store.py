"""The image cache: find, build once for all who ask, verify, stage, remove, carry away.

One folder on a filesystem that nodes share. Refuses to hand out an image that is not whole. Called by the command
line, and by rollout workers for `of_digest` and `hold`.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prorl_cli import fsio
from prorl_cli.errors import ProrlError, UserError
from prorl_cli.images import bundle, collect, stage
from prorl_cli.images.build import BuildFailed, Made, NodeFault, Tell, made
from prorl_cli.images.build_log import BuildLog
from prorl_cli.images.check import BadImage, check_header
from prorl_cli.images.contest import GRACE_S, Claim, Contest, GiveUp, Reuse
from prorl_cli.images.definition import Definition
from prorl_cli.images.digests import hash_again
from prorl_cli.images.key import Facts, Mode, facts_here, key
from prorl_cli.images.lease import End, Lease
from prorl_cli.images.manifest import Image, Manifest
from prorl_cli.images.program import Program, find_builder
from prorl_cli.images.shelf import Shelf, copy_hashed
from prorl_cli.images.uses import held

_SETTLE_S = 0.5
"""How long an image may be out of sight that `gc` was about to remove."""


def cache_root() -> Path:
    """$PRORL_CACHE, else $XDG_CACHE_HOME/prorl/images, else that below ~/.cache."""
    if asked := os.environ.get("PRORL_CACHE"):
        return Path(asked).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if base.startswith("/") else Path("~/.cache").expanduser()
    return home / "prorl" / "images"


def matching(images: Sequence[Image], wanted: str) -> list[Image]:
    """Those of a key or a name, else of eight or more digits of a key or digest."""
    named = [image for image in images if wanted in (image.name, image.key)]
    if not named and re.fullmatch(r"[0-9a-f]{8,}", wanted):
        named = [image for image in images if image.key.startswith(wanted) or image.digest.startswith(wanted)]
    return named


class Store:
    """The cache in `root`. `grace_s`: silence after which a builder, or a user of an image, counts as dead; `at_once`:
    how many images this process builds at the same time."""

    def __init__(self, root: Path, *, grace_s: float = GRACE_S, at_once: int = 1) -> None:
        self.root = root
        self._shelf = Shelf(root)
        self._grace = grace_s
        self._at_once = at_once

    def images(self) -> list[Image]:
        """The newest whole image of every key, newest first."""
        keys = dict.fromkeys(manifest.key for manifest in self._shelf.manifests())
        found = [image for each in keys if (image := self._shelf.of_key(each))]
        return sorted(found, key=lambda image: image.manifest.built_at, reverse=True)

    def recorded(self) -> list[Image]:
        """What was published last under every key, whole or not: for `verify`, which says what is wrong with it."""
        newest: dict[str, Manifest] = {}
        for manifest in sorted(self._shelf.manifests(), key=lambda each: each.number):
            newest[manifest.key] = manifest
        return [Image(path=self._shelf.object(each.digest), manifest=each) for each in newest.values()]

    def find(self, wanted: str) -> Image | None:
        """By key, by a name (the newest), or by eight or more digits of a key or digest."""
        if re.fullmatch(r"[0-9a-f]{64}", wanted):
            return self._shelf.of_key(wanted)
        return next(iter(matching(self.images(), wanted)), None)

    def of_digest(self, digest: str) -> Image | None:
        """By the whole digest of its bytes."""
        found = (self._shelf.image(manifest) for manifest in self._shelf.manifests() if manifest.digest == digest)
        return next(filter(None, found), None)

    def build(
        self,
        definition: Definition,
        mode: Mode = "lock",
        *,
        program: Program | None = None,
        tell: Tell = lambda *_: None,
    ) -> Image:
        """The image of a definition: found, built by this process, or by another while this one waits.

        `scratch` takes no image that is there when it begins. `tell` is told a line of what happens, after one of
        `warning`, `reused`, `waiting`, `building` and `publishing`. Raises `BuildFailed`, `UserError`.
        """
        facts = facts_here()
        wanted = key(definition, mode, facts)
        found = self._shelf.of_key(wanted)
        for words in definition.warnings:
            tell("warning", words)
        if found and mode != "scratch":
            tell("reused", str(found.path))
            return found
        self._shelf.prepare()
        order = _Order(definition, mode, wanted, facts, program or find_builder(), tell)
        with self._shelf.writing():
            fsio.make_folder(self._shelf.leases / wanted)
        lease = Lease(self._shelf.leases / wanted, self._grace)
        contest = Contest(outdated=found.manifest.number if found else 0, grace_s=self._grace)
        try:
            return self._obtain(order, lease, contest)
        finally:
            lease.close()

    def verify(self, image: Image) -> str:
        """What is wrong with a stored image, every byte read again; empty when nothing is."""
        try:
            check_header(image.path, image.manifest.arch)
            whole = hash_again(image.path) == image.digest
        except (BadImage, OSError) as error:
            return str(error)
        return "" if whole else f"{image.path} is not what was published"

    @contextmanager
    def hold(self, image: Image) -> Iterator[Image]:
        """`gc` does not remove the image while the block lasts. Raises `UserError` when it is gone already."""
        folder = self._shelf.uses / image.digest
        with ExitStack() as use:
            with self._shelf.writing():
                use.enter_context(held(folder, self._grace))
            if not (self._shelf.image(image.manifest) or self._later(image)):
                raise UserError(f"the image {image.name} is gone from {self.root}: `prorl cache build` makes it anew")
            yield image

    def gc(
        self, *, keep_bytes: int | None = None, keep_s: float | None = None, dry_run: bool = False
    ) -> list[collect.Removed]:
        """Remove images not used for `keep_s`, then the longest unused until the rest is no larger than `keep_bytes`;
        never one in use. Without either, only what killed processes left."""
        self._shelf.prepare()
        return collect.collect(self._shelf, grace_s=self._grace, keep_bytes=keep_bytes, keep_s=keep_s, dry_run=dry_run)

    def stage(self, image: Image, folder: Path, *, unpacked: bool = False, program: Program | None = None) -> Path:
        """A proven copy on this node's own disk, one a node: a SIF file, or the folder of an unpacked image."""
        if unpacked:
            return stage.unpacked(image, folder, program)
        return stage.staged(image, folder)

    def export(self, image: Image, path: Path) -> None:
        """The image and its manifest as one file."""
        bundle.export(image, path)

    def import_(self, path: Path) -> Image:
        """Take in what `export` wrote, once its bytes are proven."""
        self._shelf.prepare()
        return bundle.bring(self._shelf, path, self._highest)

    def _highest(self, wanted: str) -> int:
        return max(self._shelf.highest(wanted), Lease(self._shelf.leases / wanted).newest())

    def _later(self, image: Image) -> Image | None:
        time.sleep(_SETTLE_S)
        return self._shelf.image(image.manifest)

    def _obtain(self, order: _Order, lease: Lease, contest: Contest) -> Image:
        """Step by step, as `contest` says."""
        told = 0
        while True:
            there = self._shelf.of_key(order.key)
            with self._shelf.writing():
                seen = lease.look(there.manifest.number if there else 0, self._shelf.highest(order.key))
            move = contest.step(seen, time.monotonic())
            if isinstance(move, Reuse) and there:
                order.tell("reused", str(there.path))
                return there
            if isinstance(move, GiveUp):
                end = lease.end(move.number)
                raise BuildFailed(f"{order.definition.name}: another builder failed: {end.words if end else ''}")
            if isinstance(move, Claim):
                if self._won(lease, move.number) and (image := self._build(order, lease, move.number)):
                    return image
                continue
            if move.number != told:
                told = move.number
                holder = lease.of(told)
                order.tell("waiting", f"process {holder.pid} of {holder.node} builds it" if holder else "")
            time.sleep(min(1.0, self._grace / 10))

    def _won(self, lease: Lease, number: int) -> bool:
        with self._shelf.writing():
            return lease.claim(number)

    def _build(self, order: _Order, lease: Lease, number: int) -> Image | None:
        """None: this process lost its claim while it built, and its successor has published."""
        log = self._shelf.logs / f"{order.definition.name}.{order.key[:16]}.{number:06}.log"
        with self._shelf.writing(), lease.held(number):
            try:
                with self._shelf.writing():
                    image = self._attempt(order, number, log)
            except ProrlError as error:
                words = f"{error}: its log is {log}"
                # For who waits: what one node cannot, another tries.
                lease.say(number, End(outcome="left" if isinstance(error, NodeFault) else "failed", words=words))
                raise type(error)(f"{order.definition.name}: {words}") from error
            if image:
                lease.say(number, End(outcome="built"))
            return image

    def _attempt(self, order: _Order, number: int, log: Path) -> Image | None:
        with (
            log.open("w+b") as file,
            made(order.definition, order.program, self._at_once, BuildLog(file), order.tell) as result,
            self._shelf.incoming() as (incoming, path),
            result.path.open("rb") as source,
        ):
            order.tell("publishing", str(self.root))
            digest = copy_hashed(source, incoming)
            if hash_again(path) != digest:
                raise BuildFailed(f"{self.root} gives back other bytes than were written")
            if self._shelf.highest(order.key) > number:
                return None
            return self._shelf.publish(path, order.manifest(result, number, digest, path, log))


@dataclass(frozen=True, slots=True)
class _Order:
    """One call of `build`."""

    definition: Definition
    mode: Mode
    key: str
    facts: Facts
    program: Program
    tell: Tell

    def manifest(self, result: Made, number: int, digest: str, path: Path, log: Path) -> Manifest:
        return Manifest(
            key=self.key, mode=self.mode, name=self.definition.name, number=number, digest=digest,
            size=path.stat().st_size, mtime_ns=0, arch=self.facts.arch,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"), built_s=round(result.seconds, 3),
            node=socket.gethostname(), runtime=str(self.program),
            bases=[base.digest or base.reference for base in self.definition.bases],
            warnings=list(self.definition.warnings), versions=list(self.definition.versions),
            log=hashlib.sha256(log.read_bytes()).hexdigest(), bash=result.contents.bash,
            python=result.contents.python, packages=result.contents.packages,
        )  # fmt: skip
