"""`python -m prorl_cli.tasks.verifier PARENT`: calls functions by import path for the process that started it.

One JSON object a line: in `{"function": "module:name", "arguments": <pickled keyword arguments, base64>}`, out
`{"value": …}` or `{"error": text}`; `{"ready": true}` comes first. Anything the functions print goes to stderr. It ends
when its input ends, and with its parent however that dies. Started by `tasks.verifiers` and `tasks.reasoning`.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import pickle
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the input ends."""
    _die_with_parent(int(sys.argv[1]))
    requests, answers = _private_pipes()
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    for line in requests:
        answers.write(_answer(line) + "\n")
        answers.flush()


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def _private_pipes() -> tuple[Any, Any]:
    """The two pipes, out of reach of functions that read stdin or print."""
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, answers


def _answer(line: str) -> str:
    try:
        request = json.loads(line)
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        return json.dumps({"value": function(**pickle.loads(base64.b64decode(request["arguments"])))})
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the main of a process reports whatever a verifier does
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
