"""The claims on one key, as files: numbered, won by link, with a heartbeat each and a last word.

Decides nothing (`contest` does) and locks nothing, since flock is a lie on some shared filesystems. Called by
`Store.build`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from prorl_cli import fsio
from prorl_cli.images.contest import GRACE_S, Seen
from prorl_cli.images.holder import Beat, Holder, holder_here, read_beat

_NAME = re.compile(r"(?P<number>\d{6})\.(claim|beat|end)")


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last word of a claim: `built`; `left`, so another may try; or `failed`, as others would, and why."""

    outcome: str
    words: str = ""


class Lease:
    """The claims in `folder`; `holder` is this process, which loses one by `grace_s` seconds of silence."""

    def __init__(self, folder: Path, grace_s: float = GRACE_S) -> None:
        self.folder = folder
        self._grace = grace_s
        self.holder = holder_here()
        self._waiting = Beat(folder / f"waiting-{self.holder.token}", self.holder, grace_s)

    def look(self, published: int, known: int) -> Seen:
        """What a contest must know. Writes this process's own mark first, as proof that the filesystem answers."""
        self._waiting.write()
        claim = self.newest()
        holder = self.of(claim)
        end = self.end(claim)
        return Seen(
            published=published,
            known=known,
            claim=claim,
            beat=read_beat(self._file(claim, "beat"))[0],
            gone=holder is not None and holder.gone,
            ended=end.outcome if end else "",
        )

    def newest(self) -> int:
        """The highest number claimed; 0 for none."""
        found = map(_NAME.fullmatch, fsio.names(self.folder))
        return max((int(match["number"]) for match in found if match and match[2] == "claim"), default=0)

    def of(self, number: int) -> Holder | None:
        """Who won it."""
        data = fsio.read(self._file(number, "claim"))
        return msgspec.json.decode(data, type=Holder) if data else None

    def end(self, number: int) -> End | None:
        """Its last word, if it was said."""
        data = fsio.read(self._file(number, "end"))
        return msgspec.json.decode(data, type=End) if data else None

    def claim(self, number: int) -> bool:
        """Whether this process has won `number`."""
        won = fsio.publish_exclusive(self._file(number, "claim"), msgspec.json.encode(self.holder))
        if won:
            self._forget_below(number)
        return won

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Beat while the block lasts, then say how it ended: what the block said by `say`, else `left`."""
        with Beat(self._file(number, "beat"), self.holder, self._grace):
            try:
                yield
            finally:
                if self.end(number) is None:
                    self.say(number, End(outcome="left"))

    def say(self, number: int, end: End) -> None:
        """The last word; where it cannot be written, silence will be understood."""
        with contextlib.suppress(OSError):
            fsio.publish(self._file(number, "end"), msgspec.json.encode(end))

    def close(self) -> None:
        """Take this process's own mark away."""
        with contextlib.suppress(OSError):
            (self.folder / f"waiting-{self.holder.token}").unlink(missing_ok=True)

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:06}.{kind}"

    def _forget_below(self, number: int) -> None:
        for name in fsio.names(self.folder):
            if (match := _NAME.fullmatch(name)) and int(match["number"]) < number:
                (self.folder / name).unlink(missing_ok=True)
