"""Items of the few data sets that depend on Python's string hashes: made in a child whose hashes are fixed.

Called by `tasks.reasoning` alone, for a process whose own hashes are random. One child a process, which it outlives
in no case.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
import weakref
from typing import Any

from prorl_cli.errors import ProrlError


class HashFixed:
    """Calls functions by import path in one child with `PYTHONHASHSEED=0`; started when needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._one_at_a_time = threading.Lock()

    def call(self, function: str, **arguments: Any) -> Any:
        """What `module:function` returns there, as JSON; `ProrlError` when it raises or the child dies."""
        request = {"function": function, "arguments": base64.b64encode(pickle.dumps(arguments)).decode()}
        with self._one_at_a_time:
            answer = self._exchange(json.dumps(request))
        if "error" in answer:
            raise ProrlError(f"{function}: {answer['error']}")
        return answer["value"]

    def _exchange(self, line: str) -> Any:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its death shows in the answer that does not come
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return json.loads(process.stdout.readline() or '{"error": "the process died"}')

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "prorl_cli.tasks.verifier", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        process.stdout.readline()  # it says that it is ready
        weakref.finalize(self, _end, process)
        self._process = process
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
