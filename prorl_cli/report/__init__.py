"""What a run looks like, read from its directory alone: while it runs, after it ended, with half its roles dead.

Refuses to change anything; called by the command line.
"""

from prorl_cli.report.screen import render_live, render_summary, shown
from prorl_cli.report.status import Status, read_brief, read_status
from prorl_cli.report.tally import Tally

__all__ = ["Status", "Tally", "read_brief", "read_status", "render_live", "render_summary", "shown"]
