"""One tool call: the child that runs it under its limits, and the verdict on how that child ended.

`run` is called in the child and never returns; `verdict` is pure and is called by the supervisor. A limit hit,
a raised `ToolError` or a crash is an outcome of the policy; only a signal that the box cannot have sent itself
is `killed`, evidence from outside.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, NoReturn

from prorl_cli.sandbox.boxed import frames
from prorl_cli.sandbox.boxed.calls import Result
from prorl_cli.sandbox.boxed.tools import Run, ToolError

MAX_OUTPUT = 256 * 1024
"""Characters of one tool result; the agent cuts further, to tokens."""

_EXHAUSTED = {errno.ENOMEM: "memory", errno.EAGAIN: "processes"}
_EXITS = {"memory": 66, "processes": 67}
_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP}


def run(tool: Run, arguments: dict[str, Any], out: int) -> NoReturn:
    """Run the tool, write its result as one frame to file descriptor `out`, exit.

    Without memory or processes there may be none left to say so: then the exit code does.
    """
    try:
        _write(out, frames.pack(_result(tool, arguments)))
    except MemoryError:
        os._exit(_EXITS["memory"])
    except OSError as error:
        os._exit(_EXITS.get(limit_of(error), 1))
    os._exit(0)


def _result(tool: Run, arguments: dict[str, Any]) -> Result:
    try:
        return {"outcome": "ok", "output": tool(arguments)[:MAX_OUTPUT]}
    except ToolError as error:
        return failed(str(error))
    except MemoryError:
        raise
    except Exception as error:  # the boundary of the tool: whatever it met is the policy's to read
        if isinstance(error, OSError) and limit_of(error):
            raise
        return failed(f"{type(error).__name__}: {error}")


def _write(out: int, data: bytes) -> None:
    while data:
        data = data[os.write(out, data) :]


def checked(message: Any) -> Result:
    """What a child said, if it is a result a tool may have. Raises `ValueError`."""
    if not isinstance(message, dict) or message.get("outcome") not in ("ok", "error"):
        raise ValueError("not a tool's result")
    output = str(message.get("output", ""))[:MAX_OUTPUT]
    return {"outcome": message["outcome"], "output": output.encode(errors="replace").decode()}  # no half surrogates


def failed(why: str) -> Result:
    """A result that tells the policy what went wrong."""
    return {"outcome": "error", "output": f"error: {why}"[:MAX_OUTPUT]}


def verdict(status: int) -> Result:
    """What became of a child that ended with wait status `status` and left no result."""
    if os.WIFEXITED(status):
        limit = next((limit for limit, code in _EXITS.items() if code == os.WEXITSTATUS(status)), "")
        return limited(limit) if limit else failed("the tool ended without a result")
    ending = os.WTERMSIG(status)
    if ending == signal.SIGXCPU:
        return limited("cpu")
    if ending in _CRASHES:
        return failed(f"the tool died of {signal_name(ending)}")
    return {
        "outcome": "killed",
        "output": f"the tool's process was killed by {signal_name(ending)} from outside its box",
    }


def signal_name(number: int) -> str:
    """Also of one that Python has no name for."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def limit_of(error: OSError) -> str:
    """Of what the system had none left; empty where it says no for another reason."""
    return _EXHAUSTED.get(error.errno or 0, "")


def limited(what: str, more: str = "") -> Result:
    """A limit of the box was reached."""
    words = f"error: the box reached its limit of {what}"
    return {"outcome": f"limit:{what}", "output": f"{words}: {more}" if more else words}


def timed_out(seconds: float) -> Result:
    """The call took longer than its clock."""
    return {"outcome": "timeout", "output": f"error: the tool did not finish within {seconds:g} s"}
