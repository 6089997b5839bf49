"""One role process started from here: it cannot outlive its starter, and its end is recorded."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from prorl_cli.rundir import RunDir
from prorl_cli.slurm.plan import Process
from prorl_cli.spool.members import DEVICES, SLOT, Endpoint, Obituary, read_endpoints, read_obituaries, write_obituary

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Unless the user says otherwise. Roles share cores: a thread that spins while it waits takes another role's turn."""


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within the block this process inherits what its children leave behind, so that it can end that too."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class Child:
    """A started role; `code` is None while it runs."""

    def __init__(
        self, run: RunDir, attempt: int, process: Process, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.process = process
        self.log = run.log(attempt, process.name)
        self.started = time.monotonic()
        self._run, self._attempt = run, attempt
        self.log.parent.mkdir(parents=True, exist_ok=True)
        starter = os.getpid()

        def tie_to_starter() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != starter:
                os._exit(1)

        told = {SLOT: process.name, DEVICES: ",".join(map(str, process.devices))}
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=tie_to_starter, env={**ENVIRONMENT, **environment, **told},
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id; also the id of its process group."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """To the whole group; a group that is gone is fine."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def bury(self) -> None:
        """Record the end for everybody who waits for this incarnation's heartbeat."""
        told = read_obituaries(self._run)
        for endpoint in read_endpoints(self._run, self._attempt):
            if endpoint.incarnation not in told and self.owns(endpoint):
                reason = how_it_ended(self.code)
                obituary = Obituary(
                    incarnation=endpoint.incarnation, code=self.code or 0, reason=reason, step=endpoint.step
                )
                write_obituary(self._run, obituary)

    def owns(self, endpoint: Endpoint) -> bool:
        """Whether it is this process that announces itself there."""
        return endpoint.slot == self.process.name and endpoint.pid == self.pid

    def last_words(self, lines: int = 8) -> str:
        """The end of its log."""
        return tail(self.log, lines)


class Children:
    """The `Starter` of this machine: a role is a child process here."""

    tick_s = 0.1
    """A restart is noticed at once, at no cost."""

    def __init__(self, run: RunDir, attempt: int) -> None:
        self._run, self._attempt = run, attempt

    def start(self, process: Process) -> Child:
        """Start `process` here."""
        return Child(self._run, self._attempt, process, process.command(self._run.root), os.environ)

    def terminate(self, children: Sequence[Child]) -> None:
        """Ask for an orderly end."""
        for child in children:
            child.signal(signal.SIGTERM)

    def kill(self, children: Sequence[Child]) -> None:
        """End them now, and whatever they left below this process."""
        for child in children:
            child.signal(signal.SIGKILL)
        end_descendants()


def how_it_ended(code: int | None) -> str:
    """An exit code in words."""
    if code is not None and code < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}"
    return f"exited with code {code}"


def tail(log: Path, lines: int) -> str:
    """The last lines of a text file, at most 16 KiB of it."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def end_descendants() -> None:
    """Kill whatever is still below this process: orphans that roles left to their subreaper."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=5)
