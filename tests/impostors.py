"""Listeners that took over a port of a run: what they hear is kept."""

import asyncio
import ssl
import threading

from prorl_cli.wire.certificate import make
from prorl_cli.wire.server import shown
from tests import tls


class Impostor:
    """Answers every request with `200 {}`, plain or with TLS under a certificate of its own, from a thread of its own."""

    def __init__(self, port=0, certificate=None):
        self.heard = b""
        self.calls = 0
        self._port = port
        self._context = None if certificate is None else shown(*certificate)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _listen(self):
        self._loop.set_exception_handler(lambda *_: None)
        return await asyncio.start_server(self._hear, "127.0.0.1", self._port, ssl=self._context)

    async def _close(self):
        self._server.close()
        await asyncio.sleep(0.1)

    async def _hear(self, reader, writer):
        self.calls += 1
        try:
            async with asyncio.timeout(1):
                while piece := await reader.read(65536):
                    self.heard += piece
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        except (TimeoutError, OSError, ssl.SSLError):
            pass
        finally:
            writer.close()


def foreign():
    """A certificate like the run's in everything but its key."""
    return tls.written(make())
