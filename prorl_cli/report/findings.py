"""One thing that `doctor` looked at, how it tries a command, and the table of what it found."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from typing import Literal

import msgspec
from rich.console import RenderableType
from rich.table import Table

PROBE_S = 20.0

Verdict = Literal["ok", "note", "bad"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`note`: worth knowing; `bad`: something of prorl will not work here. `fix` says what to do."""

    part: str
    name: str
    value: str
    verdict: Verdict = "ok"
    fix: str = ""


def found(part: str, name: str, value: str, good: bool, fix: str, *, needed: bool = False) -> Finding:
    """One whose verdict is whether it is good, and how bad it is if not; `fix` is for then."""
    verdict: Verdict = "ok" if good else "bad" if needed else "note"
    return Finding(part=part, name=name, value=value, verdict=verdict, fix="" if good else fix)


def tried(*command: str) -> tuple[bool, str]:
    """Whether a command works, and its first line."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PROBE_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode == 0, lines[0] if lines else ""


STYLE = {"ok": "green", "note": "yellow", "bad": "bold red"}


def findings_table(findings: Iterable[Finding]) -> RenderableType:
    """A row each, grouped as they come."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    part = ""
    for finding in findings:
        if finding.part != part:
            part = finding.part
            table.add_row("", f"[bold]{part}[/]", "", "")
        style = STYLE[finding.verdict]
        table.add_row(f"[{style}]{finding.verdict}[/]", finding.name, _plain(finding.value), _plain(finding.fix))
    return table


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
