"""Real ranks of a learner, forked from a parent that has torch and DeepSpeed loaded, as Slurm would start them."""

import multiprocessing
import os
import runpy
import signal
import sys
import time
from importlib.util import find_spec

from prorl_cli.metrics import read_rows
from prorl_cli.spool.members import read_endpoints
from tests.learner_process import until

_context = multiprocessing.get_context("forkserver")
PRELOADED = [
    "prorl_cli.learner.loop", "prorl_cli.learner.torch_trainer", "transformers.models.llama.modeling_llama", __name__,
]  # fmt: skip
if find_spec("deepspeed"):
    PRELOADED.append("prorl_cli.learner.deepspeed_trainer")
_context.set_forkserver_preload(PRELOADED)


def be_a_rank(root, log, environment):
    """What `python -m prorl_cli.learner ROOT` does in that environment, with its output in a file."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environment)
    sys.argv = ["learner", root]
    runpy.run_module("prorl_cli.learner", run_name="__main__")


class Ranks:
    """One start of a learner with `count` ranks."""

    def __init__(self, run, count=2):
        self.run = run
        self.log = run.logs / "learner.log"
        key = f"start{time.monotonic_ns()}"
        self.processes = [self._start(rank, count, key) for rank in range(count)]

    def _start(self, rank, count, key):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "PRORL_RANKS": key}
        arguments = (str(self.run.root), str(self.log), environment)
        process = _context.Process(target=be_a_rank, args=arguments, daemon=True)
        process.start()
        return process

    @property
    def alive(self):
        return all(process.is_alive() for process in self.processes)

    @property
    def endpoint(self):
        leader = self.processes[0].pid
        return next((e for e in read_endpoints(self.run) if e.pid == leader), None)

    def at(self, position, within=240):
        """Until this start has done `position`."""
        return until(lambda: self.endpoint and self.endpoint.version >= position, f"position {position}", self, within)

    def idle(self, position, within=240):
        """Until it waits for the manifest after `position`."""
        wanted = f"a manifest (step {position + 1})"
        return until(lambda: self.endpoint and self.endpoint.waiting == wanted, wanted, self, within)

    def kill(self, rank):
        """SIGKILL to one; how long the others outlived it, in seconds."""
        self.processes[rank].kill()
        started = time.monotonic()
        codes = self.join(within=30)
        assert codes[rank] == -signal.SIGKILL
        assert all(code not in (0, None) for code in codes), codes
        return time.monotonic() - started

    def stop(self, within=60):
        """SIGTERM to all, as Slurm signals a step; their exit codes."""
        for process in self.processes:
            os.kill(process.pid, signal.SIGTERM)
        return self.join(within)

    def join(self, within):
        end = time.monotonic() + within
        for process in self.processes:
            process.join(max(0.1, end - time.monotonic()))
        codes = [process.exitcode for process in self.processes]
        assert None not in codes, f"{codes} after {within} s:\n{self.log.read_text()[-3000:]}"
        return codes


def finish(run, last, count=2):
    """A start that does everything up to `last` and is stopped in order; its metrics rows by position."""
    ranks = Ranks(run, count)
    ranks.idle(last)
    assert ranks.stop() == [0] * count
    return {row["step"]: row for kind in ("step", "void", "restore") for row in read_rows(run, kind)}
