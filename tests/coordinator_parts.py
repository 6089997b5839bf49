"""Scripted workers and a scripted learner around real coordinator processes: real files, no model."""

import multiprocessing
import os
import random
import sys
import time

import msgspec

from prorl_cli.rundir import Incarnation
from prorl_cli.spool.members import Endpoint, Obituary, read_outcome, write_endpoint, write_obituary
from prorl_cli.spool.requests import RequestFollower
from prorl_cli.spool.steps import steps
from prorl_cli.spool.trajectories import TrajectoryFollower, TrajectoryWriter
from prorl_cli.spool.weights import latest_weights, publish_weights
from prorl_cli.trajectory import (
    Cancel,
    Drain,
    ErrorClass,
    GroupRequest,
    Purpose,
    Sequence,
    StopReason,
    Trajectory,
    VersionSpan,
)  # fmt: skip

BEAT_S = 0.2


class Worker:
    """Follows its requests and appends trajectories, one `pump` at a time."""

    def __init__(self, run, dice, *, attempt=1, node="n", pace=4, errors=0.05):
        self.run, self.dice, self.pace, self.errors = run, dice, pace, errors
        self.name = str(Incarnation.new("rollout", node, attempt))
        self.endpoint = Endpoint(
            incarnation=self.name, role="rollout", node=node, attempt=attempt, pid=os.getpid(), pid_started=0.0,
            state="ready",
        )  # fmt: skip
        self.follower = RequestFollower(run, self.name)
        self.log = TrajectoryWriter(run, self.name, vocab_size=9)
        self.running, self.beaten, self.draining, self.held = {}, 0.0, False, lambda key: False
        self.beat()

    def beat(self):
        self.beaten = time.monotonic()
        self.endpoint = msgspec.structs.replace(self.endpoint, beat=self.endpoint.beat + 1)
        write_endpoint(self.run, self.endpoint)

    def pump(self):
        if time.monotonic() - self.beaten > BEAT_S:
            self.beat()
        for request in self.follower.poll():
            self.read(request)
        ready = [key for key in self.running if not self.held(key)]
        for key in self.dice.sample(ready, min(self.pace, len(ready))):
            failed = self.dice.random() < self.errors
            self.write(key, ErrorClass.ENGINE if failed else None)
        self.log.commit()

    def read(self, request):
        if isinstance(request, Drain):
            self.draining = True
        elif isinstance(request, GroupRequest):
            for member, tried in zip(request.members, request.tries, strict=True):
                self.running[request.purpose, request.group, member] = request, tried
        elif isinstance(request, Cancel):
            for member in request.members:
                if (key := (request.purpose, request.group, member)) in self.running:
                    self.write(key, ErrorClass.CANCELLED)

    def write(self, key, error_class=None, reward=None):
        request, tried = self.running.pop(key)
        version = self.dice.randint(request.min_version, max(latest_weights(self.run), request.min_version))
        version = request.min_version if key[0] == Purpose.EVAL else version
        sequence = Sequence.pack(
            [1, 2, 3], [0, 1, 1], [0.0, -0.5, -0.5], [VersionSpan(version=version, start=1, end=3)]
        )
        self.log.append(
            Trajectory(
                group=request.group, member=key[2], tried=tried, purpose=key[0], task=request.task,
                sequences=() if error_class else (sequence,), sampling={}, tool_calls=(), reward_parts={},
                reward=0.0 if error_class else float(self.dice.random() < 0.5) if reward is None else reward,
                stop_reason=StopReason.NONE if error_class else StopReason.ANSWERED, error_class=error_class,
                worker=self.name,
            )
        )  # fmt: skip

    def die(self):
        self.log.close()
        write_obituary(self.run, Obituary(incarnation=self.name, code=-9, reason="killed by the test"))


def train(run):
    """One step of the scripted learner: the weights of the next manifest, if it is there."""
    version = latest_weights(run) + 1
    if version == 0 or version in run.positions():
        publish_weights(run, version, lambda folder: (folder / "model").write_bytes(b"w") and {})


class Coordinators:
    """Coordinator processes, forked from a warmed server so that a start costs milliseconds; killed for real."""

    def __init__(self, run):
        self.run = run
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.coordinator_parts", "prorl_cli.coordinator.process"])
        self.started = []

    def start(self):
        process = self.context.Process(target=coordinate, args=(str(self.run.root),))
        process.start()
        self.started.append(process)
        return process

    def close(self):
        for process in self.started:
            process.kill()
            process.join()


def coordinate(root):
    """Target of a coordinator process: what `python -m prorl_cli.coordinator` does, polling faster because scripted
    workers ring no doorbell."""
    from prorl_cli.coordinator import process
    from prorl_cli.role import main

    process.POLL_S = 0.03
    sys.argv = ["coordinator", root]
    log = os.open(f"{root}/logs/coordinators.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    main("coordinator", process.body)


def until(condition, act, timeout_s=60):
    """Call `act` until `condition()` holds."""
    limit = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < limit, "nothing came of it"
        act()
        time.sleep(0.005)
    return found


def outcome(run, attempt=1):
    return read_outcome(run, attempt)


def logs_of(run):
    found = {}
    for entry in TrajectoryFollower(run).poll():
        found.setdefault(entry.writer, []).append(entry)
    return found


def manifests_of(run):
    return list(steps(run))


def dice(seed):
    return random.Random(seed)
