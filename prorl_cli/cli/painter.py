"""The live view of `launch` and `resume`: a picture on a terminal, a line now and then in a plain log."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import RenderableType
from rich.live import Live

from prorl_cli.errors import ProrlError
from prorl_cli.report import Status, Tally, read_status, render_live
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.child import Child, tail
from prorl_cli.slurm.supervisor import Watch

REDRAW_S = 1.0
"""Between two pictures of the live view; reading the run costs some milliseconds."""


class Painter(Watch):
    """Redraws the live view, at most every `REDRAW_S`; on a plain log it prints a line now and then.

    An observation never ends a run: what cannot be read is shown as such.
    """

    def __init__(self, run: RunDir, attempt: int, live: Live) -> None:
        self._run, self._attempt, self._live = run, attempt, live
        self._tally = Tally(run)
        self._next = 0.0
        self._interval = REDRAW_S if live.console.is_terminal else 15.0

    def tick(self, running: Sequence[Child]) -> None:
        """Draw if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        try:
            picture = self._picture()
        except (ProrlError, OSError) as error:
            picture = f"cannot draw the run: {error}"
        if self._live.console.is_terminal:
            self._live.update(picture, refresh=True)
        else:
            self._live.console.print(picture, soft_wrap=True)

    def _picture(self) -> RenderableType:
        if not self._run.weight_folders():
            return tail(self._run.log(self._attempt, "warmstart"), 1) or "making the first weights"
        status = read_status(self._run, self._tally)
        return render_live(status) if self._live.console.is_terminal else _one_line(status)


def _one_line(status: Status) -> str:
    learner = status.learner
    reward = f"  reward {learner['reward']:.3f}  {learner['step_s']:.2f} s/step" if learner else ""
    return f"step {status.step}/{status.steps}{reward}  {'; '.join(status.waits[:2])}"
