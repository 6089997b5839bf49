"""What Slurm has told the batch step by signals: that the time limit is near, or to end."""

from __future__ import annotations

import signal
from types import FrameType

NEAR_THE_LIMIT = signal.SIGUSR2
"""Asked for by `--signal=B:USR2@…`; NCCL catches USR1."""

END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Told:
    """Remembers from its creation on; only the main thread may make one."""

    def __init__(self) -> None:
        self.drain = False
        self.end = False
        signal.signal(NEAR_THE_LIMIT, self._drain)
        for number in END:
            signal.signal(number, self._end)

    def _drain(self, number: int, frame: FrameType | None) -> None:
        self.drain = True

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.end = True
