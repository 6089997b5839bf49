"""How a build of several images is shown: a row each on a terminal, a line a change elsewhere, JSON at the end.

Called by `building`, from its threads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from prorl_cli.images import Image

_STYLES = {"there": "green", "built": "green", "failed": "bold red", "waiting": "dim", "begun": "dim"}

IDLE = ("waiting", "queued", "reused")
"""States in which somebody else works, or nobody."""


class Row:
    """One image on its way."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.state, self.words = "waiting", ""
        self.facts: dict[str, Any] = {}
        self._rows = rows
        self._worked = False
        self.began = self.ended = 0.0

    def say(self, state: str, words: str = "") -> None:
        """What happens now; the words alone may change often. A warning is no state, and stays."""
        if state == "warning":
            self._rows.warned(self, words)
            return
        self.began = self.began or time.monotonic()
        self._worked = self._worked or state not in IDLE
        changed, self.state, self.words = state != self.state, state, words.strip()
        if changed:
            self._rows.changed(self)

    def done(self, image: Image) -> None:
        """It is there."""
        built = self._worked
        self.facts = {"key": image.key, "digest": image.digest, "path": str(image.path), "size": image.size}
        self.facts["warnings"] = list(image.manifest.warnings)
        took = f" in {image.built_s:.0f} s" if built else ""
        self._end("built" if built else "there", f"{image.size / 2**20:.0f} MiB{took}  {image.key[:12]}")

    def failed(self, why: str) -> None:
        """There will be none."""
        self.facts = {"error": why}
        self._end("failed", why.removeprefix(f"{self.name}: "))

    def _end(self, state: str, words: str) -> None:
        self.ended = time.monotonic()
        self.say(state, words)

    @property
    def elapsed(self) -> str:
        seconds = (self.ended or time.monotonic()) - self.began if self.began else 0
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}" if self.began else ""


class Rows:
    """All of them, by name."""

    def __init__(self, names: Sequence[str], live: Live | None, plain: bool) -> None:
        self._rows = {name: Row(name, self) for name in names}
        self._live = live
        self._plain = plain
        self._one_writer = threading.Lock()

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def changed(self, row: Row) -> None:
        """A plain log gets a line for it."""
        if self._plain and row.state != "reused":
            self._print(f"{row.name}: {row.state}{': ' * bool(row.words)}{row.words}")

    def warned(self, row: Row, words: str) -> None:
        """Said once, above the picture."""
        if self._live:
            text = f"{row.name}: warning: {words}"
            self._live.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
        elif self._plain:
            self._print(f"{row.name}: warning: {words}")

    def _print(self, line: str) -> None:
        with self._one_writer:
            print(line, file=sys.stderr, flush=True)

    def tick(self) -> None:
        """A terminal gets a new picture."""
        if self._live:
            self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        """Leave the last picture, and below it in full why images failed."""
        self.tick()
        if self._live:
            self._live.stop()
            for row in self._rows.values():
                if row.state == "failed":
                    self._live.console.print(
                        f"{row.name}: {row.words}", style="red", markup=False, highlight=False, soft_wrap=True
                    )

    def as_json(self) -> str:
        """Everything at the end."""
        return json.dumps(
            [{"name": row.name, "state": row.state, **row.facts} for row in self._rows.values()], indent=2
        )

    def _picture(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False, expand=True)
        for _ in ("name", "state", "elapsed"):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for row in self._rows.values():
            style = _STYLES.get(row.state, "cyan")
            table.add_row(row.name, f"[{style}]{escape(row.state)}[/]", row.elapsed, escape(row.words))
        return table


@contextmanager
def opened_rows(names: Sequence[str], as_json: bool) -> Iterator[Rows]:
    """On standard error, so that JSON has standard output for itself; JSON alone where it is asked for."""
    console = Console(stderr=True)
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    rows = Rows(names, live, plain=not as_json and live is None)
    if live:
        live.start()
    try:
        yield rows
    finally:
        rows.close()
    if as_json:
        print(rows.as_json())
