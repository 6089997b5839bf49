"""`Verifiers`: scoring in child processes kept warm, each call with a deadline; a child that hangs is killed.

What a verifier does wrong (raise, hang, die, return no finite number) is an `InfraError(verifier)`, never a reward.
The clock of a call starts when a child is free for it. One object a rollout worker; handlers get it with their job.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any, Self

from prorl_cli.errors import InfraError
from prorl_cli.tasks.source import Item
from prorl_cli.trajectory import ErrorClass

START_S = 120.0
"""A child imports the verifiers' libraries first: seconds here, a minute from a cold shared filesystem."""

MAX_LINE = 64 * 2**20
"""Bytes of one answer."""

SCORE = "prorl_cli.tasks.scoring:score"
WARM = "prorl_cli.tasks.scoring:warm"


class Verifiers:
    """`async with Verifiers(count=2) as verifiers`. `code` is put on the children's import path."""

    def __init__(self, *, count: int = 1, deadline_s: float = 60.0, code: Path | None = None) -> None:
        self._deadline_s = deadline_s
        self._path = os.pathsep.join(filter(None, (str(code or ""), os.environ.get("PYTHONPATH", ""))))
        self._children = [_Child(self._path) for _ in range(count)]
        self._idle: asyncio.LifoQueue[_Child] = asyncio.LifoQueue()
        for child in self._children:
            self._idle.put_nowait(child)

    async def __aenter__(self) -> Self:
        """Start every child, warm."""
        try:
            await asyncio.gather(*(child.start() for child in self._children))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill every child; idempotent."""
        for child in self._children:
            await child.end()

    async def score(self, item: Item, answer: str) -> float:
        """The reward of `answer` by the item's own verifier; `InfraError(verifier)` when that fails."""
        value = await self.call(SCORE, answer=answer, wanted=item.answer, payload=item.payload)
        return float(value)

    async def call(self, function: str, **arguments: Any) -> float:
        """Call `module:function` with picklable arguments in a child: for verifiers of your own. Its finite number,
        or `InfraError(verifier)`."""
        child = await self._idle.get()
        try:
            return _finite(function, await self._within_deadline(child, function, arguments))
        finally:
            self._idle.put_nowait(child)

    async def _within_deadline(self, child: _Child, function: str, arguments: dict[str, Any]) -> Any:
        await child.start()
        try:
            async with asyncio.timeout(self._deadline_s):
                return await child.ask(function, arguments)
        except TimeoutError:
            await child.end()
            raise _failed(f"{function} took longer than {self._deadline_s:g} s") from None
        except asyncio.CancelledError:
            # Its answer would be taken for the next call's.
            await child.end()
            raise


class _Child:
    """One verifier process: started when needed, asked one thing at a time."""

    def __init__(self, path: str) -> None:
        self._environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Have a live, warm process."""
        if self._process is not None and self._process.returncode is None:
            return
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prorl_cli.tasks.verifier", str(os.getpid()),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env=self._environment, limit=MAX_LINE, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(START_S):
                await self._read(WARM)
                await self.ask(WARM, {})
        except BaseException as error:
            await self.end()
            if isinstance(error, TimeoutError):
                raise _failed(f"no verifier process within {START_S:g} s") from None
            raise

    async def ask(self, function: str, arguments: dict[str, Any]) -> Any:
        """What the function returned; `InfraError(verifier)` when it raised or the process died of it."""
        assert self._process is not None and self._process.stdin is not None
        request = {"function": function, "arguments": base64.b64encode(pickle.dumps(arguments)).decode()}
        with contextlib.suppress(ConnectionError):  # its death shows in the answer that does not come
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        answer = await self._read(function)
        if "error" in answer:
            raise _failed(f"{function}: {answer['error']}")
        return answer["value"]

    async def _read(self, function: str) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            code = await self._process.wait()
            raise _failed(f"the verifier process died (exit code {code}) in {function}")
        return json.loads(line)

    async def end(self) -> None:
        """Kill the process and what it started; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _finite(function: str, value: Any) -> float:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise _failed(f"{function} gave {value!r}, not a finite number")


def _failed(what: str) -> InfraError:
    return InfraError(ErrorClass.VERIFIER, what)
