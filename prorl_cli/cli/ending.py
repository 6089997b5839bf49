"""The end of an attempt as `launch` and its kin show it, and the exit code that it makes."""

from __future__ import annotations

from rich.console import Console

from prorl_cli.report import read_status, render_summary, shown
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.job import EXIT
from prorl_cli.spool.members import Outcome


def show_end(run: RunDir, outcome: Outcome) -> int:
    """Print the summary of a run that has ended; returns its exit code."""
    Console().print(render_summary(read_status(run)), soft_wrap=True)
    if outcome.state != "done":
        Console(stderr=True).print(f"{outcome.state}: {outcome.reason}", style="red", markup=False)
    if outcome.state == "stopped":
        print(f"go on with: prorl resume {shown(run.root)}")
    return EXIT[outcome.state]
