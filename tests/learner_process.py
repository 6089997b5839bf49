"""Real learner processes for tests: forked from a parent that has torch loaded, so that a start takes a moment."""

import multiprocessing
import os
import signal
import sys
import time

from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import read_endpoints

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["prorl_cli.learner.loop", "prorl_cli.learner.torch_trainer", "transformers.models.llama.modeling_llama", __name__]
)


def be_a_learner(root: str, log: str) -> None:
    """What `python -m prorl_cli.learner ROOT` does, with stderr in a file."""
    from prorl_cli.learner.loop import live
    from prorl_cli.role import main

    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    sys.argv = ["learner", root]
    main("learner", live)


class LearnerProcess:
    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.log = run.logs / "learner.log"
        self._process = _context.Process(target=be_a_learner, args=(str(run.root), str(self.log)), daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def stop(self, within: float = 20.0) -> int:
        """SIGTERM, as a supervisor's drain; its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.join(within)

    def join(self, within: float) -> int:
        self._process.join(within)
        assert self._process.exitcode is not None, f"still there after {within} s:\n{self.log.read_text()[-2000:]}"
        return self._process.exitcode

    @property
    def endpoint(self):
        return next((e for e in read_endpoints(self.run) if e.pid == self.pid), None)


def until(ready, what: str, process: LearnerProcess | None = None, within: float = 60.0):
    """Poll until `ready()` is truthy and return it; a process that dies meanwhile is shown with its log."""
    end = time.monotonic() + within
    while not (found := ready()):
        text = process.log.read_text()[-3000:] if process is not None and process.log.exists() else ""
        assert time.monotonic() < end, f"{what}: not within {within} s\n{text}"
        assert process is None or process.alive, f"{what}: the learner died\n{text}"
        time.sleep(0.002)
    return found
