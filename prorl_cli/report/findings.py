"""One thing that `doctor` looked at, and the table of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
from rich.console import RenderableType
from rich.table import Table

Verdict = Literal["ok", "note", "bad"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`note`: worth knowing; `bad`: something of prorl will not work here. `fix` says what to do."""

    part: str
    name: str
    value: str
    verdict: Verdict = "ok"
    fix: str = ""


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
