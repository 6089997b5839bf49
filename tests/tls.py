"""One certificate for the servers and clients of a test process."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from prorl_cli.wire import Client
from prorl_cli.wire.certificate import make
from prorl_cli.wire.client import pinned
from prorl_cli.wire.server import Server


@functools.cache
def pair():
    """Paths of a certificate and its key."""
    return written(make())


def written(made):
    """Paths of a certificate and its key on disk, until this process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    paths = folder / "tls.crt", folder / "tls.key"
    for path, text in zip(paths, made, strict=True):
        path.write_text(text)
    return paths


def trust():
    """What `client` trusts, for other clients."""
    return pinned(pair()[0])


def server(app):
    return Server(app, "127.0.0.1", *pair())


def client(token):
    return Client(token, pair()[0])
