"""Listeners that took over a port of a run: what they hear is kept."""

import socket
import ssl
import threading

from prorl_cli.wire.certificate import make
from prorl_cli.wire.server import shown
from tests import tls

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Impostor:
    """Answers whatever comes with `200 {}`, in plain text or with TLS under a certificate of its own."""

    def __init__(self, port=0, certificate=None):
        self.heard = b""
        self.accepted = 0
        self._context = None if certificate is None else shown(*certificate)
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.1)
        self.port = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._leave.set()
        self._thread.join(10)
        self._listener.close()

    def _listen(self):
        while not self._leave.is_set():
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.accepted += 1
            with end:
                end.settimeout(1)
                self._hear(end)

    def _hear(self, end):
        try:
            with end if self._context is None else self._context.wrap_socket(end, server_side=True) as spoken:
                while piece := spoken.recv(65536):
                    self.heard += piece
                    spoken.sendall(ANSWER)
        except (OSError, ssl.SSLError):
            pass


def foreign():
    """A certificate like the run's in everything but its key."""
    return tls.written(make())
