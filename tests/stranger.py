"""What another user of the machine may try: open files, read /proc, talk to ports; nothing here knows a token."""

import json
import os
import pwd
import socket
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PATHS = (
    "/", "/health", "/docs", "/redoc", "/openapi.json", "/metrics", "/status", "/doorbell", "/doorbell?since=-1", "/gate",
    "/gate/drain", "//gate", "/gate/../docs", "/GATE", "/leases", "/leases/release", "/permits", "/inference/v1/generate",
    "/v1/models", "/load", "/version", "/server_info", "/collective_rpc", "/%67ate", "*",
)  # fmt: skip
METHODS = ("HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")
HEADS = (
    "Authorization: Bearer \r\n", "Authorization: Bearer null\r\n", "Authorization: Basic cm9vdDo=\r\n",
    "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
)  # fmt: skip

OPEN = """
import json, os, socket, sys
uid, gid = map(int, sys.argv[1:])
paths = json.load(sys.stdin)
os.setgroups([]); os.setgid(gid); os.setuid(uid)
opened = []
for path in paths:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        opened.append(path)
    except OSError:
        pass
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(path)
            opened.append(path)
        except OSError:
            pass
print(json.dumps(opened))
"""


def opened_by_another_user(paths):
    """Which of `paths` a second user can open, list or connect to."""
    user = other_user()
    command = [sys.executable, "-c", OPEN, str(user.pw_uid), str(user.pw_gid)]
    found = subprocess.run(command, input=json.dumps(sorted(paths)), capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def other_user():
    if os.getuid() != 0:
        pytest.skip("only root can become a second user; an unprivileged run is judged by its mode bits")
    for name in ("prorl-ci", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip("there is no second user")


def open_to_others(path):
    """By its mode bits and those above it: may another user open this path? False for one that is gone."""
    path = Path(path)
    try:
        above = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
        return bool(above and path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH))
    except OSError:
        return False


def tls(port, request, host="127.0.0.1"):
    """The whole answer to `request` of a caller that trusts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=10) as raw, context.wrap_socket(raw) as secured:
        secured.sendall(request)
        return _rest(secured)


def plain(port, request, host="127.0.0.1"):
    """The whole answer to `request` of a caller without TLS."""
    with socket.create_connection((host, port), timeout=10) as raw:
        raw.sendall(request)
        return _rest(raw)


def _rest(end):
    pieces = []
    try:
        while piece := end.recv(65536):
            pieces.append(piece)
    except (ConnectionError, ssl.SSLError):
        pass
    return b"".join(pieces)


def requests():
    """Every path, every method, every way to say who one is not."""
    for path in PATHS:
        yield _request("GET", path, "")
        yield _request("POST", path, "")
    for method in METHODS:
        yield _request(method, "/gate", "")
    for path in ("/gate", "/doorbell"):
        for head in HEADS:
            yield _request("GET", path, head)


def _request(method, path, head):
    body = '{"token_ids": [1], "sampling_params": {}}' if method in ("POST", "PUT", "PATCH") else ""
    close = "" if "Upgrade" in head else "Connection: close\r\n"
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{head}{close}{length}\r\n{body}".encode()
