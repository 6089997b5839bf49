"""Files of the worker's in and out of a box, in frames of bounded size, by a child inside that follows no link.

Raises `FileRefused` where the box holds something else than a file there: the policy may have planted it, so it is
its doing, and the host is never touched. Called by `box`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from prorl_cli.errors import InfraError, ProrlError
from prorl_cli.sandbox.results import ToolResult
from prorl_cli.trajectory import ErrorClass

Ask = Callable[[str, dict[str, Any], float], Awaitable[ToolResult]]

TIMEOUT_S = 60.0
"""Of one piece."""
PUT_PIECE = 5 * 2**19
"""Bytes of one frame, before base64 makes 4 of 3."""
GET_PIECE = 180 * 1024
"""Bytes of one answer, whose text the box bounds."""
PER_FILE = 512
"""What a file's name and mode may add to a frame, roughly."""


class FileRefused(ProrlError):
    """A file of a box could not be read or written, for a reason that lies in the box."""


async def put(ask: Ask, files: Mapping[str, bytes], mode: int) -> None:
    """Write files, each whole or not at all; their folders are made."""
    token = secrets.token_hex(8)
    for batch in _batches(files, mode):
        await _asked(ask, "_put", {"files": batch, "token": token})


def _batches(files: Mapping[str, bytes], mode: int) -> Iterable[list[Any]]:
    batch: list[Any] = []
    room = PUT_PIECE
    for path, data in files.items():
        for at in range(0, max(1, len(data)), PUT_PIECE):
            piece = data[at : at + PUT_PIECE]
            if batch and len(piece) + PER_FILE > room:
                yield batch
                batch, room = [], PUT_PIECE
            batch.append([path, mode, base64.b64encode(piece).decode(), at, at + len(piece) == len(data)])
            room -= len(piece) + PER_FILE
    if batch:
        yield batch


async def get(ask: Ask, path: str, limit: int) -> bytes:
    """A file of at most `limit` bytes."""
    data, first = bytearray(), ""
    while True:
        answer = await _asked(ask, "_get", {"path": path, "at": len(data), "size": GET_PIECE})
        size, identity, piece = answer.split(" ")
        if int(size) > limit:
            raise FileRefused(f"{path} has {size} bytes (at most {limit})")
        first = first or identity
        data += base64.b64decode(piece)
        if identity != first or len(data) > int(size):
            raise FileRefused(f"{path} changes while it is read")
        if len(data) == int(size):
            return bytes(data)
        if not piece:
            raise FileRefused(f"{path} ends before its {size} bytes")


async def _asked(ask: Ask, tool: str, arguments: dict[str, Any]) -> str:
    result = await ask(tool, arguments, TIMEOUT_S)
    if result.outcome == "timeout":
        raise InfraError(ErrorClass.SANDBOX, f"a box did not do {tool} within {TIMEOUT_S:g} s")
    if result.outcome != "ok":
        raise FileRefused(result.output.removeprefix("error: "))
    return result.output
