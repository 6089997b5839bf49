"""Slurm's own commands: a scrubbed environment, a deadline, no standard input, and three ways to fail.

Refuses to interpret an answer: `state`, `preflight` and whoever submits do that. Called by every file that talks to
Slurm; nobody else starts its commands.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from prorl_cli.errors import UserError
from prorl_cli.slurm.environment import scrubbed

TIMEOUT_S = 30.0
"""A busy controller answers late; a dead one is retried by Slurm's commands for longer than anybody waits."""

_SILENT_CONTROLLER = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "Connection refused",
    "Transport endpoint is not connected",
    "Slurm backup controller in standby mode",
)  # fmt: skip
"""What Slurm prints when nobody answered: whether the request arrived is then unknown."""


class SlurmError(UserError):
    """Slurm cannot be asked, or says no."""


class NotInstalled(SlurmError):
    """There is no such command on this machine."""


class ControllerDown(SlurmError):
    """The controller did not answer; a submission may still have arrived."""


class Refused(SlurmError):
    """Slurm answered no; `text` is its own words."""

    def __init__(self, command: str, text: str) -> None:
        super().__init__(f"{command}: {text}")
        self.text = text


def slurm(arguments: Sequence[str], timeout_s: float = TIMEOUT_S, *, folder: Path | None = None) -> str:
    """Standard output of one Slurm command, `squeue …`, started in `folder`."""
    name = arguments[0]
    try:
        done = subprocess.run(
            list(arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, env=scrubbed(), check=False, cwd=folder,
        )  # fmt: skip
    except FileNotFoundError:
        raise NotInstalled(f"there is no `{name}` here: {_ELSEWHERE}") from None
    except subprocess.TimeoutExpired:
        raise ControllerDown(f"`{name}` got no answer from Slurm within {timeout_s:.0f} s: {_ASK}") from None
    if done.returncode:
        raise _failure(name, said(done.stderr) or said(done.stdout) or f"exit code {done.returncode}")
    return done.stdout


_ELSEWHERE = (
    "go to a login node of the cluster (perhaps `module load slurm`, or set SLURM_CONF), or train on this machine with "
    "`--set cluster.executor=local`"
)
_ASK = "try again in a minute; `sinfo` and the site's status page tell whether Slurm is down"


def _failure(name: str, text: str) -> SlurmError:
    if "configuration source" in text:
        return NotInstalled(f"`{name}` is here, but this machine belongs to no cluster ({text}): {_ELSEWHERE}")
    if any(words in text for words in _SILENT_CONTROLLER):
        return ControllerDown(f"Slurm's controller does not answer ({name}: {text}): {_ASK}")
    return Refused(name, text)


def said(text: str) -> str:
    """A command's complaint as one line, without the names and levels that Slurm puts before each."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for prefix in ("sbatch:", "srun:", "scancel:", "squeue:", "sinfo:", "scontrol:", "sacct:", "sacctmgr:", "error:"):
        lines = [line.removeprefix(prefix).strip() for line in lines]
    return "; ".join(dict.fromkeys(line for line in lines if line))
