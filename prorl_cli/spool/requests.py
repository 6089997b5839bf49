"""Request logs: each coordinator process keeps one log for each worker; the worker reads all that are addressed to it.

Requests, cancellations and drain orders are records of the same log, so a worker reads exactly one kind of thing.
Refuses nothing about their content. Called by the coordinator, rollout workers and the status.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader, LogWriter, Row
from prorl_cli.trajectory import Request

FACTS_SIZE = 0

_log = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


class RequestWriter:
    """What coordinator incarnation `writer` asks of worker incarnation `worker`."""

    def __init__(self, run: RunDir, worker: str, writer: str) -> None:
        self._log = LogWriter(run.request_log(worker, writer), facts_size=FACTS_SIZE)

    def append(self, request: Request) -> int:
        """Buffer a request; returns its record number."""
        return self._log.append(_encoder.encode(request))

    def commit(self) -> None:
        """Return once everything appended is durable and visible to the worker."""
        self._log.commit()

    def close(self) -> None:
        """Commit and close, idempotent."""
        self._log.close()


class RequestFollower:
    """Follows the logs that all coordinators keep for `worker`, those known longest first."""

    def __init__(self, run: RunDir, worker: str) -> None:
        self._folder = run.requests / worker
        self._readers: dict[str, LogReader] = {}

    def poll(self) -> list[Request]:
        """All requests since the last call, each once, per coordinator in order; a damaged one is logged and left
        out: its group then ends by its deadline."""
        for writer in fsio.names(self._folder):
            if writer not in self._readers and not writer.startswith("."):
                self._readers[writer] = LogReader(self._folder / writer, FACTS_SIZE)
        return [
            request
            for reader in self._readers.values()
            for rows in reader.chunks()
            for request in _requests(reader, rows)
        ]


def all_requests(run: RunDir) -> Iterator[tuple[str, Request]]:
    """Every request that its worker can read, with the worker it is addressed to, in constant memory.

    What a coordinator died over, between a record and its index entry, is not among them: the worker never sees it, so
    a coordinator that counted on it would wait for nobody.
    """
    for worker in fsio.names(run.requests):
        for writer in fsio.names(run.requests / worker):
            reader = LogReader(run.request_log(worker, writer), FACTS_SIZE)
            for rows in reader.chunks():
                yield from ((worker, request) for request in _requests(reader, rows))


def _requests(reader: LogReader, rows: list[Row]) -> Iterator[Request]:
    for row in rows:
        try:
            yield _decoder.decode(reader.read(row))
        except (CorruptRecord, msgspec.DecodeError) as error:
            _log.warning("left out: record %d of %s: %s", row.seq, reader.folder, error)
