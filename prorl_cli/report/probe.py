"""Two tasks on two nodes that measure one folder: how soon a write, a new name and a fresh `exists` get across, and
whether only one of them can take a name.

They talk over TCP, so that no clocks are compared and the filesystem is not its own witness; only where they meet is a
file. Started by `sharing`; imports little, since a node may start it from a slow filesystem.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from prorl_cli import fsio

MARK = "prorl-shared "
"""Begins the line of results, among whatever else a node prints."""

ROUNDS = 5
NAMES = 50

MEET_S = 60.0
"""A folder in which a second node has seen nothing by then is none that nodes share."""

SEEN_S = 60.0

Race = Callable[[Path], bool]


class Line:
    """JSON messages between the two."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SEEN_S + MEET_S)
        self._file = connection.makefile("rw", encoding="utf-8")

    def say(self, message: Any) -> None:
        """One line."""
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()

    def hear(self) -> Any:
        """The other's next line."""
        return json.loads(self._file.readline())


def write(place: Path) -> None:
    """Task 0: does things, and says that it has."""
    line = _await_caller(place) if place.is_dir() else None
    if line is None:
        return  # the other one says that it saw nothing
    line.say(socket.gethostname())
    durations = []
    for number in range(ROUNDS):
        start = time.monotonic()
        fsio.publish(place / "content", str(number).encode())
        durations.append(time.monotonic() - start)
        _tell(line)
    for kind in ("listing", "exists"):
        for number in range(ROUNDS):
            line.hear()
            (place / f"{kind}-{number}").touch()
            _tell(line)
    line.say(durations)
    for name, take in RACES.items():
        line.say("go")
        line.say(_race(place, name, take))


def read(place: Path) -> dict[str, Any]:
    """Task 1: waits until it sees what it was told of; returns what was measured."""
    meeting = _meet(place)
    if meeting is None:
        return {"shared": False}
    line = _call(meeting)
    found: dict[str, Any] = {"shared": True, "nodes": [line.hear(), socket.gethostname()]}
    content = place / "content"
    found["reopen"] = [
        _until(line, lambda number=number: fsio.read(content) == str(number).encode())  # type: ignore[misc]
        for number in range(ROUNDS)
    ]
    found["listing"] = [_new_name(line, place, number) for number in range(ROUNDS)]
    found["exists"] = [_new_file(line, place / f"exists-{number}") for number in range(ROUNDS)]
    found["fsync"] = line.hear()
    for name, take in RACES.items():
        line.hear()
        mine = _race(place, name, take)
        found[name] = NAMES - len(set(mine) ^ set(line.hear()))
    return found


def _tell(line: Line) -> None:
    line.say("done")
    line.hear()


def _until(line: Line, seen: Callable[[], bool]) -> float:
    """Seconds from being told to seeing."""
    line.hear()
    start = time.monotonic()
    while not seen():
        if time.monotonic() - start > SEEN_S:
            break
        time.sleep(0.002)
    taken = time.monotonic() - start
    line.say("seen")
    return taken


def _new_name(line: Line, place: Path, number: int) -> float:
    line.say("ready")
    return _until(line, lambda: f"listing-{number}" in os.listdir(place))


def _new_file(line: Line, path: Path) -> float:
    """After a look that found nothing, which a client may remember."""
    path.exists()
    line.say("ready")
    return _until(line, path.exists)


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _link(path: Path) -> bool:
    return fsio.publish_exclusive(path, b"mine")


RACES: dict[str, Race] = {"create": _create, "link": _link}


def _race(place: Path, name: str, take: Race) -> list[int]:
    """Numbers of the names that this task took."""
    return [number for number in range(NAMES) if take(place / f"{name}-{number}")]


def _await_caller(place: Path) -> Line | None:
    """Say where to call, and take the first caller who knows the secret; None when nobody comes."""
    secret = secrets.token_hex(16)
    with socket.create_server(("", 0)) as server:
        server.settimeout(MEET_S + 10)
        meeting = {"addresses": _addresses(), "port": server.getsockname()[1], "secret": secret}
        fsio.publish(place / "meet", json.dumps(meeting).encode())
        try:
            while True:
                line = Line(server.accept()[0])
                if line.hear() == secret:
                    return line
        except TimeoutError:
            return None


def _addresses() -> list[str]:
    """Where this node may be reached; what only it can reach comes last."""
    every = (address for interface in psutil.net_if_addrs().values() for address in interface)
    found = [address.address for address in every if address.family == socket.AF_INET]
    return sorted(found, key=lambda address: address.startswith("127."))


def _meet(place: Path) -> dict[str, Any] | None:
    start = time.monotonic()
    while time.monotonic() - start < MEET_S:
        if place.is_dir() and "meet" in os.listdir(place) and (data := fsio.read(place / "meet")):
            return dict(json.loads(data))
        time.sleep(0.05)
    return None


def _call(meeting: dict[str, Any]) -> Line:
    for address in meeting["addresses"]:
        try:
            line = Line(socket.create_connection((address, meeting["port"]), timeout=5))
        except OSError:
            continue
        line.say(meeting["secret"])
        return line
    raise SystemExit(f"cannot reach the first node at any of {', '.join(meeting['addresses'])}")


def main(place: Path) -> None:
    """Task 0 writes; task 1 reads and reports."""
    if os.environ["SLURM_PROCID"] == "0":
        write(place)
    else:
        sys.stdout.write(MARK + json.dumps(read(place)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
