"""One build: inputs brought and proven, the builder under its guard, the image proven before anybody sees it.

Everything happens in a folder of this node; what leaves it is the image, by `Store`. Tries again only what may
succeed in a moment. Refuses an image that does not prove itself, and inputs that changed since they were hashed.
Called by `Store.build`.
"""

from __future__ import annotations

import collections
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from prorl_cli.errors import ProrlError, UserError
from prorl_cli.images import guard
from prorl_cli.images.build_log import BuildLog
from prorl_cli.images.check import SMOKE, BadImage, Contents, check_header, parse_list, parse_smoke
from prorl_cli.images.definition import Definition, Input, changed_bases, rendered
from prorl_cli.images.digests import copied_tree
from prorl_cli.images.key import facts_here
from prorl_cli.images.places import scratch_folder
from prorl_cli.images.program import Program, build_command, environment, run_command
from prorl_cli.images.reasons import Reason, explain
from prorl_cli.images.share import share_here

RETRY_S = (5.0, 20.0)
"""Pauses before a second and a third attempt."""
SILENCE_S = 3600.0
"""A builder that says nothing for this long hangs; compilers of large projects are silent for minutes."""
_TAIL = 200
_LONGEST = 1 << 16

T = TypeVar("T")
Tell = Callable[[str, str], None]
"""Told a stage of the work and a line."""


class BuildFailed(ProrlError):
    """No image was made; the message says why and where the log lies."""


class NodeFault(BuildFailed):
    """It is this node that cannot: another may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A proven image, on this node's own disk while `made` lasts."""

    path: Path
    contents: Contents
    seconds: float


@contextmanager
def made(definition: Definition, program: Program, at_once: int, log: BuildLog, tell: Tell) -> Iterator[Made]:
    """Build and prove, `at_once - 1` others meanwhile. Raises `BuildFailed`, `UserError`, `OSError`."""
    with _of_this_node(scratch_folder(os.environ)) as scratch:
        started = time.monotonic()
        source = scratch / f"{definition.name}.def"
        with _on_this_node():
            source.write_text(rendered(definition, _brought(definition, scratch)))
        image = scratch / "image.sif"
        work = _Work(program, scratch, log, tell)
        work.build(image, source, at_once)
        _refuse_changed_bases(definition)
        yield Made(path=image, contents=work.proven(image, facts_here().arch), seconds=time.monotonic() - started)


class _Work:
    """What is run for one image, each under a guard that ends it with this process."""

    def __init__(self, program: Program, scratch: Path, log: BuildLog, tell: Tell) -> None:
        self._program = program
        self._scratch = scratch
        self._log = log
        self._tell = tell

    def build(self, image: Path, source: Path, at_once: int) -> None:
        """Until it succeeds, fails for good, or the pauses are used up."""
        command = build_command(self._program, image, source, share_here(at_once))
        for pause in (*RETRY_S, None):
            image.unlink(missing_ok=True)
            code, said = self.run("building", command)
            if code == 0:
                return
            reason = _reason(code, said)
            if not reason.transient or pause is None:
                raise (NodeFault if reason.nodes else BuildFailed)(f"{reason.words} (exit code {code})")
            self._tell("building", f"{reason.words}; again in {pause:.0f} s")
            time.sleep(pause)

    def proven(self, image: Path, arch: str) -> Contents:
        """What is in the image. Raises `BuildFailed`."""
        try:
            check_header(image, arch)
            parse_list("\n".join(self.run("checking", [self._program.path, "sif", "list", str(image)])[1]))
            _, said = self.run("checking", run_command(self._program, image, "/bin/sh", "-c", SMOKE), kept=None)
            return parse_smoke("\n".join(said))
        except (BadImage, FileNotFoundError) as error:
            raise BuildFailed(f"the builder left no image that can be used: {error}") from error

    def run(self, stage: str, command: Sequence[str], kept: int | None = _TAIL) -> tuple[int, list[str]]:
        """The exit code and the last `kept` lines; every line goes to the log, and those of a build are told."""
        self._log.write(f"+ {command}\n".encode())
        lines: collections.deque[str] = collections.deque(maxlen=kept)
        env = environment(self._program, os.environ, self._scratch)
        with _of_this_node(guard.guarded(command, self._scratch, env)) as process:
            for line in _lines(process, self._log):
                lines.append(line)
                if stage == "building":
                    self._tell(stage, line)
            return process.wait(), list(lines)


@contextmanager
def _on_this_node() -> Iterator[None]:
    """What this node refuses is no fault of the cache, nor of the definition."""
    try:
        yield
    except OSError as error:
        raise NodeFault(f"this node refuses: {error}") from error


@contextmanager
def _of_this_node(begun: AbstractContextManager[T]) -> Iterator[T]:
    """What `begun` yields; where it is refused, this node cannot."""
    with ExitStack() as stack:
        try:
            with _on_this_node():
                value = stack.enter_context(begun)
        except UserError as error:
            raise NodeFault(str(error)) from error
        yield value


def _refuse_changed_bases(definition: Definition) -> None:
    try:
        changed = changed_bases(definition)
    except OSError as error:
        raise BuildFailed(f"{error.filename or 'a base'} cannot be read any more: {error.strerror}") from error
    if changed:
        raise BuildFailed(f"{changed[0]} changed while it was built on: build again")


def _lines(process: subprocess.Popen[bytes], log: BuildLog) -> Iterator[str]:
    assert process.stdout
    rest = b""
    while True:
        if not select.select([process.stdout], [], [], SILENCE_S)[0]:
            raise BuildFailed(f"the builder said nothing for {SILENCE_S:.0f} s")
        data = os.read(process.stdout.fileno(), _LONGEST)
        log.write(data)
        *lines, rest = re.split(rb"[\r\n]+", rest + data) if data else [rest, b""]
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        yield from (line.decode(errors="replace") for line in lines if line)
        if not data:
            return


def _reason(code: int, said: Sequence[str]) -> Reason:
    if code in (128 + 9, 137):
        return Reason(False, "the builder was killed, as by a job's memory limit", nodes=True)
    return explain(said)


def _brought(definition: Definition, scratch: Path) -> Callable[[Path], Path]:
    """Copies of every input, proven to be what the key was made of: nothing can change them while they are used."""
    copies: dict[Path, Path] = {}
    for number, entry in enumerate(entry for stage in definition.stages for entry in stage.inputs):
        copies |= _copied(entry, scratch / "inputs" / str(number))
    return copies.__getitem__


def _copied(entry: Input, folder: Path) -> dict[Path, Path]:
    folder.mkdir(parents=True)
    copies = {source: folder / source.name for source in entry.sources}
    for source, copy in copies.items():
        if source.is_dir():
            shutil.copytree(source, copy)
        else:
            shutil.copy2(source, copy)
    if tuple(found for copy in copies.values() for found in copied_tree(copy)) != entry.tree:
        raise BuildFailed(f"{entry.copied.source} changed since it was hashed: build again")
    return copies
