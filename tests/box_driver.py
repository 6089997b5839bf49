"""What the first process of a box does for one session, in this process: polls, reaps, keeps time."""

import functools
import math
import os
import select
import signal
import time

from prorl_cli.sandbox.boxed import isolation, tree
from prorl_cli.sandbox.boxed.calls import Setting
from tests.sandbox_kit import orphans_come_here


class Driver:
    """Serves the session that `open_session` gives; `with` ends what it started."""

    def __init__(self, open_session, home):
        become = functools.partial(self._become, os.getpid())
        self.session = open_session(Setting(home=str(home), private=f"{home}.private", become=become))
        self._adopting = orphans_come_here()

    def __enter__(self):
        self._adopting.__enter__()
        return self

    def __exit__(self, *_):
        tree.clear(5)
        self._adopting.__exit__(None, None, None)

    def _become(self, parent):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        isolation.die_with_parent(parent)
        os.setsid()

    def __call__(self, timeout_s=20.0, **arguments):
        """The result of one call."""
        return self.drive(self.session.call(arguments, time.monotonic() + timeout_s), timeout_s + 10)

    def drive(self, call, within_s):
        give_up = time.monotonic() + within_s
        while call.result is None:
            assert time.monotonic() < give_up, "no answer"
            self._turn(call, min(call.wake_at(), give_up))
            if call.result is None and time.monotonic() >= call.wake_at():
                call.tick(time.monotonic())
        assert call.wake_at() <= time.monotonic() or call.wake_at() == math.inf
        call.settle()
        return call.result

    def idle(self, seconds):
        """Between two calls."""
        self.attend(self.session, seconds)

    def attend(self, speaker, seconds):
        """Hear a session or a call, without keeping its time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn(speaker, until)

    def _turn(self, speaker, until):
        poller = select.poll()
        for descriptor in speaker.descriptors():
            poller.register(descriptor, select.POLLIN)
        patience = min(max(0.0, until - time.monotonic()), 0.02)
        ready = {descriptor for descriptor, _ in poller.poll(math.ceil(patience * 1000))}
        for descriptor in [one for one in speaker.descriptors() if one in ready]:
            if descriptor in speaker.descriptors():
                speaker.ready(descriptor)
        while (ended := _ended()) and ended[0]:
            speaker.ended(*ended)


def _ended():
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
