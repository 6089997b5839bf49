"""The boxes' parent: has a box made for each `start`, reports how each one ended, takes all down when the worker goes.

Speaks JSON datagrams with the worker over a socket pair (SOCK_SEQPACKET; end of file = the worker is gone):

    → {"kind", "limits", "tools", …}   once, with the lock on its folder   ← {"tools": [...], "note": str}
    → {"start": n, "like": m} with the box's socket            ← {"ended": n, "status": wait status, "why": str}
    → {"end": n}

A box may begin with what box m has written; m is 0 for one that begins afresh, as most do.

How a box is made is the affair of its kind (`forked`, `contained`, `launched`). Two are made ahead of need, and of
those that take a moment to come up only a few at a time. Started by `parent`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import isolation
from prorl_cli.sandbox.boxed.contained import Contained
from prorl_cli.sandbox.boxed.forked import Plain, Walled
from prorl_cli.sandbox.boxed.gate import give_back
from prorl_cli.sandbox.boxed.kinds import Box, Kind
from prorl_cli.sandbox.boxed.launched import Launched
from prorl_cli.sandbox.boxed.supervisor import EXIT_CLOSED

CONTROL = 3
SPARES = 2
"""Boxes made ahead of need."""
GATE = 4
"""Boxes on their way at once: mounting many images at the same time makes each slower than one after the other."""
GATE_MS = 20
"""Until a zygote that found the node's gate full asks again."""
TICK_MS = 100
"""Between two looks at boxes that have a time to leave by."""

KINDS: dict[str, Callable[[dict[str, Any]], Kind]] = {
    "walled": Walled,
    "plain": Plain,
    "contained": Contained,
    "launched": Launched,
}


class Zygote:
    """Serves one worker."""

    def __init__(self, control: socket.socket, config: dict[str, Any]) -> None:
        self._control = control
        self._kind = KINDS[config["kind"]](config)
        self._boxes: dict[int, Box] = {}
        self._spares: deque[Box] = deque()
        self._asked: deque[tuple[int, int]] = deque()
        self._asked_alike: deque[tuple[int, int, str]] = deque()
        self._sound = False
        self._held_up = False
        self._poller = select.poll()
        self._wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.leave())

    def serve(self) -> NoReturn:
        """Until the worker closes its end; exits the process."""
        self._kind.prepare()
        gc.collect()
        gc.freeze()
        self._say({"tools": self._kind.tools, "note": self._kind.note})
        self._poller.register(self._control, select.POLLIN)
        self._poller.register(self._wake_r, select.POLLIN)
        while True:
            self._turn({fd for fd, _ in self._poller.poll(self._patience_ms())})

    def _patience_ms(self) -> int | None:
        if self._held_up:
            return GATE_MS
        if self._wants_spares():
            return self._kind.quiet_ms if self._spares else self._kind.haste_ms
        return self._kind.look_ms if all(box.leave_by == math.inf for box in self._boxes.values()) else TICK_MS

    def _turn(self, ready: Collection[int]) -> None:
        self._held_up = False
        if not self._kind.sound():  # another zygote begins afresh; here each answer would be told as the policy's doing
            os.write(2, b"what its boxes stand on is gone\n")
            self.leave()
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        for box in list(self._boxes.values()):
            if not box.up and box.hand.fileno() in ready:
                self._rise(box)
        self._reap()
        if CONTROL in ready:
            self._command()
        for box in self._boxes.values():
            if time.monotonic() > box.leave_by:
                self._kind.kill(box)
        while self._asked_alike and self._make_alike():
            pass
        while self._asked and (self._spares or self._make(len(self._asked))):
            if self._spares:
                self._give(self._spares.popleft(), *self._asked.popleft())
        if not ready and self._wants_spares():
            self._make(SPARES)

    def _on_their_way(self) -> int:
        return sum(not box.up for box in self._boxes.values())

    def _wants_spares(self) -> bool:
        """Not after one that failed: the next start says why, and only if it succeeds there are spares again."""
        missing = len(self._spares) + self._on_their_way() < SPARES
        return missing and self._sound and not self._asked and not self._asked_alike

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self.leave()

    def _command(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 65536, 1)
        except ConnectionResetError:  # killed before it read all that was said to it
            data, fds = b"", []
        if not data:
            self.leave()
        message = json.loads(data)
        if "start" in message and message["like"]:
            self._ask_alike(message["start"], fds[0], message["like"])
        elif "start" in message:
            self._asked.append((message["start"], fds[0]))
        else:
            self._end(message["end"])

    def _ask_alike(self, number: int, fd: int, like: int) -> None:
        folder = next((box.folder for box in self._boxes.values() if box.number == like), "")
        if folder:
            self._asked_alike.append((number, fd, folder))
        else:
            self._fail("the box that it is to be like keeps nothing on disk, or has ended", (number, fd))

    def _make(self, wanted: int) -> bool:
        """Have another box made; whether anything came of it. Who asked first hears why none could be."""
        return self._on_their_way() < min(GATE, wanted) and self._launch("", None)

    def _make_alike(self) -> bool:
        """For the first who asked for one like another."""
        number, fd, like = self._asked_alike[0]
        if self._on_their_way() >= GATE or not self._launch(like, (number, fd)):
            return False
        self._asked_alike.popleft()
        return True

    def _launch(self, like: str, wanted: tuple[int, int] | None) -> bool:
        try:
            box = self._kind.make(like)
        except OSError as error:
            self._fail(f"could not be forked: {error}", wanted)
            return True
        self._held_up = box is None
        if box is None:
            return False
        self._boxes[box.pid] = box
        box.wanted = wanted
        if box.up:
            self._settle(box)
        else:
            self._poller.register(box.hand, select.POLLIN)
        return True

    def _settle(self, box: Box) -> None:
        self._sound = True
        if box.wanted:
            self._give(box, *box.wanted)
            box.wanted = None
        else:
            self._spares.append(box)

    def _fail(self, why: str, wanted: tuple[int, int] | None) -> None:
        self._sound = self._sound and wanted is not None
        if wanted is None and self._asked:
            wanted = self._asked.popleft()
        if wanted:
            os.close(wanted[1])
            self._say({"ended": wanted[0], "status": 0, "why": why})

    def _rise(self, box: Box) -> None:
        self._poller.unregister(box.hand)
        give_back(box.permit)
        if self._kind.rise(box):
            box.up = True
            self._settle(box)

    def _give(self, box: Box, number: int, fd: int) -> None:
        box.number = number
        with box.hand:
            try:
                socket.send_fds(box.hand, [b"."], [fd])
            except OSError:  # it has died, or cannot be given anything: its end is told in its turn
                self._kind.kill(box)
        os.close(fd)

    def _end(self, number: int) -> None:
        for queue in (self._asked, self._asked_alike):
            for asked in [asked for asked in queue if asked[0] == number]:
                queue.remove(asked)  # type: ignore[arg-type]
                os.close(asked[1])
                self._say({"ended": number, "status": EXIT_CLOSED, "why": ""})
        for box in self._boxes.values():
            if box.number == number:
                self._kind.end(box)
            elif box.wanted and box.wanted[0] == number:
                self._kind.kill(box)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if box := self._boxes.pop(ended[0], None):
                    self._bury(box, ended[1])
                else:
                    self._kind.orphaned(ended[0], self._boxes)

    def _bury(self, box: Box, status: int) -> None:
        if not box.up:
            with contextlib.suppress(KeyError, ValueError):  # it said its last word before, and was heard
                self._poller.unregister(box.hand)
        give_back(box.permit)
        box.hand.close()
        status, why = self._kind.bury(box, status, self._boxes)
        if not box.up:
            self._fail(why, box.wanted)
        elif box in self._spares:
            self._spares.remove(box)
        else:
            self._say({"ended": box.number, "status": status, "why": ""})

    def leave(self) -> NoReturn:
        """Worker gone: nothing may stay behind. Exits the process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # end of file and death signal come together: once is enough
        self._kind.leave(self._boxes.values())
        os._exit(0)


def main() -> NoReturn:
    """`python -c BOOT FOLDER`: take the configuration from the worker's socket, the standard input, and serve it."""
    os.dup2(0, CONTROL, inheritable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(CONTROL + 1, 1 << 20)
    isolation.forget_keys()
    control = socket.socket(fileno=CONTROL)
    data, locks, _, _ = socket.recv_fds(control, 65536, 1)
    for lock in locks:  # held by being open
        os.set_inheritable(lock, False)
    if not data:
        sys.exit(0)
    config = json.loads(data)
    zygote = Zygote(control, config)
    try:
        zygote.serve()
    finally:
        traceback.print_exc()
        zygote.leave()
