"""What the policy and the graders are told of a command, and which arguments are refused; pure. Called by `session`."""

from __future__ import annotations

import os
from typing import Any

from prorl_cli.sandbox.boxed import tool_run
from prorl_cli.sandbox.boxed.calls import Result

_KEPT = "a new one has its directory, variables and functions"
_BARE = "a new one was started without its variables and functions"


def mistake(arguments: dict[str, Any]) -> str:
    """Why these arguments are not a command; empty if they are."""
    command, restart = arguments.get("command", ""), arguments.get("restart", False)
    if not isinstance(command, str) or not isinstance(restart, bool) or arguments.keys() - {"command", "restart"}:
        return 'the arguments must be {"command": "..."}, and "restart": true to begin with a new shell'
    if "command" not in arguments and not restart:
        return "there is no command"
    return "a command cannot have a NUL character in it" if "\0" in command else ""


def failed(why: str, outcome: str = "error") -> Result:
    """Nothing was run."""
    return {"outcome": outcome, "output": f"error: {why}", "facts": {}}


def restarted(folder: str) -> Result:
    """A new shell was asked for, and nothing else."""
    facts = {"exit_code": 0, "cwd": folder, "restarted": True, "omitted": 0}
    return {"outcome": "ok", "output": f"[a new shell begins in {folder}]", "facts": facts}


def exit_code(status: int) -> int:
    """As a shell counts: 128 and the signal's number for what a signal ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def how_ended(status: int) -> str:
    """From a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {tool_run.signal_name(-code)}"


def answer(outcome: str, text: str, facts: dict[str, Any], notes: list[str]) -> Result:
    """What was printed, then what the policy must know besides, a line each."""
    apart = "\n" if text and notes and not text.endswith("\n") else ""
    output = text + apart + "\n".join(f"[{note}]" for note in notes)
    return {"outcome": outcome, "output": output, "facts": facts}


def lost_note(how: str, kept: bool) -> str:
    """A shell has ended, and there is another."""
    return f"the shell {how}; {_KEPT if kept else _BARE}"


def outcome_note(outcome: str, code: int, seconds: float) -> str:
    """Why there is no exit code, or which it is; empty for success."""
    if outcome == "timeout":
        return f"timed out after {round(seconds, 1):g} s; what the command had started was ended"
    if outcome.startswith("limit:"):
        return f"the box reached its limit of {outcome.partition(':')[2]}; what the command had started was ended"
    return f"exit code {code}" if code else ""
