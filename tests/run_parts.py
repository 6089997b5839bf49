"""Run directories and role processes for tests that need the real thing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prorl_cli.recipe import Recipe
from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import Obituary, claim_attempt, live, read_endpoints, read_obituaries, write_obituary
from prorl_cli.wire import Client, certificate

REPOSITORY = Path(__file__).parent.parent


def make_run(root, **sections):
    """A run directory with attempt 1 claimed and its recipe resolved."""
    run = RunDir(Path(root).absolute())
    run.create()
    run.secure(*certificate.make())
    recipe = {
        "name": "test",
        "model": "builtin:tiny",
        "tasks": [{"domain": "sum", "source": "reasoning_gym:chain_sum"}],
        "agent": {"renderer": "tiny"},
        **sections,
    }
    attempt = claim_attempt(run, {})
    run.resolved(attempt).write_text(Recipe.model_validate_json(json.dumps(recipe)).model_dump_json())
    return run


def client_of(run):
    """A client of every listener of the run."""
    return Client(run.data_token.read_text(), run.certificate)


class Processes:
    """Role processes of one run; leaves none behind."""

    def __init__(self, run):
        self.run = run
        self.started = []

    def start(self, *command, **environment):
        """`start("-m", "prorl_cli.router")`: a python process of the run; its output goes to the run's log."""
        log = self.run.logs / f"{len(self.started)}.log"
        paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *command, str(self.run.root)], stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment},
            )  # fmt: skip
        process.log = log
        self.started.append(process)
        return process

    def router(self):
        return self.start("-m", "prorl_cli.router")

    def worker(self):
        return self.start("-m", "prorl_cli.rollout")

    def engine(self, **script):
        return self.start("-m", "tests.scripted_engine", SCRIPT=json.dumps(script))

    async def endpoint(self, process, timeout=60):
        """The endpoint of a process, once it serves."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            for endpoint in live(read_endpoints(self.run), read_obituaries(self.run), 1):
                if endpoint.pid == process.pid and endpoint.url and endpoint.state != "starting":
                    return endpoint
            if process.poll() is not None:
                break
            await asyncio.sleep(0.02)
        raise AssertionError(f"process {process.args} does not serve:\n{process.log.read_text()[-3000:]}")

    def kill(self, process, signal_number=signal.SIGKILL):
        """Kill it, and write the obituary that its supervisor would write."""
        process.send_signal(signal_number)
        code = process.wait(timeout=10)
        for endpoint in read_endpoints(self.run):
            if endpoint.pid == process.pid:
                obituary = Obituary(incarnation=endpoint.incarnation, code=code, reason="killed by the test")
                write_obituary(self.run, obituary)

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait(timeout=10)
