"""A stateful tool without a box: does in a process of its own what a box's first process does, for fast tests.

`Driver` is the tests' side: a session in a child process that adopts orphans, asked by lines of JSON. As a program it
is that process: it polls, reaps whatever ends, ticks, answers, settles; between calls it polls the session alone.
"""

import importlib
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from prorl_cli.sandbox.boxed import isolation, tree
from prorl_cli.sandbox.boxed.calls import Setting

BASH = "prorl_cli.sandbox.boxed.tools.bash:open_session"


class Driver:
    """One such process; `begin` makes a session in it. Use as a context manager."""

    def __init__(self, session=BASH):
        command = [sys.executable, "-m", "tests.shell_driver", session]
        here = Path(__file__).parent.parent
        self._process = subprocess.Popen(command, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)

    def begin(self, folder, **environment):
        """A new session in place of the last, with a home and a private folder below `folder`."""
        self.home, self.private = Path(folder, "home"), Path(folder, "private")
        self.home.mkdir(exist_ok=True)
        self.private.mkdir(exist_ok=True)
        self._say({"home": str(self.home), "private": str(self.private), "environment": environment})
        return self

    def _say(self, order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def ask(self, arguments, timeout_s=20.0, **order):
        """The result, with `seconds` (from asking to answer, in the driver) and the driver's `peak` memory in KiB."""
        return self._say({"arguments": arguments, "timeout_s": timeout_s, **order})

    def run(self, command, timeout_s=20.0):
        return self.ask({"command": command}, timeout_s)

    def out(self, command, timeout_s=20.0):
        """What it prints, where all is well."""
        result = self.run(command, timeout_s)
        assert (result["outcome"], result["facts"]["exit_code"], result["facts"]["restarted"]) == ("ok", 0, False), (
            result
        )
        return result["output"]


class Loop:
    """What a box's first process does with a session that `make` makes."""

    def __init__(self, make):
        self._make = make
        self._environment = dict(os.environ)
        self._session = None
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self):
        while order := self._idle():
            for answer in self._answers(order) if "arguments" in order else self._begin(order):
                print(json.dumps(answer), flush=True)

    def _begin(self, order):
        tree.clear(10.0)
        os.environ.clear()
        os.environ.update(self._environment | order["environment"])
        self._session = self._make(Setting(home=order["home"], private=order["private"], become=become))
        yield {}

    def _answers(self, order):
        began = time.monotonic()
        call = self._session.call(order["arguments"], began + order["timeout_s"])
        limit_at = began + order.get("limit_after_s", math.inf)
        while call.result is None:
            self._poll(call, min(call.wake_at(), limit_at) - time.monotonic())
            now = time.monotonic()
            if call.result is None and now >= limit_at:
                limit_at = math.inf
                call.limited("memory")
            if call.result is None and now >= call.wake_at():
                call.tick(now)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield call.result | {"seconds": time.monotonic() - began, "peak": peak}
        call.settle()

    def _idle(self):
        """The next order, or None at the end of them."""
        while 0 not in self._poll(self._session, None, 0):
            pass
        return json.loads(line) if (line := sys.stdin.readline()) else None

    def _poll(self, owner, patience_s, *others):
        poller = select.poll()
        for descriptor in (self._wake, *others, *(owner.descriptors() if owner else ())):
            poller.register(descriptor, select.POLLIN)
        found = [fd for fd, _ in poller.poll(None if patience_s is None else max(0, math.ceil(patience_s * 1000)))]
        for descriptor in found:
            if descriptor == self._wake:
                os.read(self._wake, 4096)
            elif descriptor not in others and descriptor in owner.descriptors():
                owner.ready(descriptor)
        self._reap(owner)
        return found

    def _reap(self, owner):
        try:
            while (ended := os.wait4(-1, os.WNOHANG))[0]:
                owner.ended(*ended[:2])
        except ChildProcessError:
            pass


def become():
    """As a box's first process has it: own session, no descriptor but the first three, dies with the driver."""
    isolation.die_with_parent(os.getppid())
    os.setsid()
    os.closerange(3, 1 << 16)


def main(session):
    isolation.adopt_orphans()
    module, _, name = session.partition(":")
    try:
        Loop(getattr(importlib.import_module(module), name)).serve()
    finally:
        signal.set_wakeup_fd(-1)
        tree.clear(10.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
