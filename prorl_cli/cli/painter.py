"""The live view of `launch` and `resume`: a picture on a terminal, a line now and then in a plain log."""

from __future__ import annotations

import time

from rich.live import Live

from prorl_cli.report import read_status, render_live
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.child import tail

REDRAW_S = 1.0
"""Between two pictures of the live view; reading the run costs some milliseconds."""


class Painter:
    """Redraws the live view, at most every `REDRAW_S`; on a plain log it prints a line now and then."""

    def __init__(self, run: RunDir, attempt: int, live: Live) -> None:
        self._run, self._attempt, self._live = run, attempt, live
        self._next = 0.0
        self._interval = REDRAW_S if live.console.is_terminal else 15.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval
        if self._run.weight_folders():
            status = read_status(self._run)
            if self._live.console.is_terminal:
                self._live.update(render_live(status), refresh=True)
            else:
                self._live.console.print(_one_line(status.step, status.steps, status.learner, status.waits))
        else:
            words = tail(self._run.log(self._attempt, "warmstart"), 1) or "making the first weights"
            if self._live.console.is_terminal:
                self._live.update(words, refresh=True)
            else:
                self._live.console.print(words)


def _one_line(step: int, steps: int, learner: dict[str, float], waits: list[str]) -> str:
    reward = f"  reward {learner['reward']:.3f}  {learner['step_s']:.2f} s/step" if learner else ""
    return f"step {step}/{steps}{reward}  {'; '.join(waits[:2])}"
