"""A run with a router, scripted engines and a rollout worker, all real processes; the test is its coordinator."""

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from prorl_cli.agent.tiny import VOCAB_SIZE
from prorl_cli.spool.requests import RequestWriter
from prorl_cli.spool.trajectories import TrajectoryFollower, read_trajectory
from prorl_cli.spool.weights import publish_weights
from prorl_cli.trajectory import GroupRequest, Purpose, TaskRef
from tests.run_parts import Processes, client_of, make_run


class Bench:
    """The parts, by role, and what the coordinator would know."""

    def __init__(self, run, processes, client):
        self.run, self.processes, self.client = run, processes, client
        self.engines, self.router, self.worker = [], None, None
        self.follower, self.entries = TrajectoryFollower(run), []
        self.writer = None

    async def start(self, scripts):
        self.router = self.processes.router()
        self.engines = [self.processes.engine(**script) for script in scripts]
        self.worker = self.processes.worker()
        for process in (self.router, *self.engines):
            await self.processes.endpoint(process)
        await self.follow_worker()

    async def follow_worker(self):
        self.name = (await self.processes.endpoint(self.worker)).incarnation
        self.writer = RequestWriter(self.run, self.name, "coordinator-test-1-00000000")

    def ask(self, *requests):
        for request in requests:
            self.writer.append(request)
        self.writer.commit()

    def group(self, number=0, members=range(4), *, task=0, purpose=Purpose.TRAIN, version=0, tried=0):
        members = tuple(members)
        self.ask(
            GroupRequest(
                group=number, purpose=purpose, task=TaskRef(task=task, domain="math", index=number),
                members=members, tries=(tried,) * len(members), min_version=version, seed=number,
            )
        )  # fmt: skip

    def finished(self):
        self.entries += self.follower.poll()
        return self.entries

    async def records(self, count, timeout=30):
        """At least `count` records, read whole."""
        await until(lambda: len(self.finished()) >= count, timeout, self.seen)
        return [read_trajectory(self.run, entry) for entry in self.entries]

    def seen(self):
        return f"{len(self.entries)} records; the worker says:\n{self.worker.log.read_text()[-2000:]}"

    async def script(self, number, **changes):
        """Change an engine's script; returns its counters."""
        url = (await self.processes.endpoint(self.engines[number])).url + "/script"
        return await self.client.call("POST", url, changes, deadline_s=5)

    async def in_flight(self, count):
        """Until at least `count` requests are in flight."""
        await self._requests(lambda now: now >= count, 30)

    async def none_in_flight(self):
        """Until the engines saw that nobody waits for an answer any more: within two seconds."""
        await self._requests(lambda now: now == 0, 2)

    async def _requests(self, enough, within_s):
        end = time.monotonic() + within_s
        while not enough(now := sum([(await self.script(n))["in_flight"] for n in range(len(self.engines))])):
            assert time.monotonic() < end, f"{now} requests in flight; {self.seen()}"
            await asyncio.sleep(0.02)

    def children(self):
        """Everything that the worker started: verifiers, the boxes' parent, boxes."""
        return psutil.Process(self.worker.pid).children(recursive=True)

    async def children_at_rest(self):
        """Their number once spare boxes are made and old ones gone."""
        seen = [len(self.children())]
        while len(seen) < 20 or len(set(seen[-20:])) > 1:
            await asyncio.sleep(0.02)
            seen.append(len(self.children()))
        return seen[-1]


@asynccontextmanager
async def bench(root: Path, *scripts, **sections):
    run = make_run(root / "run", **sections)
    publish_weights(run, 0, weights)
    processes = Processes(run)
    try:
        async with client_of(run) as client:
            made = Bench(run, processes, client)
            await made.start(scripts or ({},))
            yield made
    finally:
        processes.close()


def weights(folder):
    (folder / "config.json").write_text(f'{{"vocab_size": {VOCAB_SIZE}}}')
    return {}


async def until(true, timeout=30, why=str):
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, why()
        await asyncio.sleep(0.02)


def gone(processes):
    """Whether all these processes have ended (a zombie has)."""
    return not [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
