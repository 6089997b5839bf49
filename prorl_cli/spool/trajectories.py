"""Trajectory logs: each worker process appends what it finished; everybody else follows the entries.

An `Entry` carries what the coordinator decides by; bodies are read only by who trains on them or shows them. Refuses a
trajectory whose tokens do not hold together, on write and on read. Called by rollout workers, the coordinator, the
learner and `prorl samples`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterator

import msgspec

from prorl_cli import fsio
from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogReader, LogWriter, Row
from prorl_cli.trajectory import ErrorClass, Purpose, RecordRef, StopReason, Trajectory, check_trajectory

_FACTS = struct.Struct("<qiiiIIiidfBBBB")
FACTS_SIZE = _FACTS.size
_PURPOSES, _STOPS, _ERRORS = tuple(Purpose), tuple(StopReason), (None, *ErrorClass)
_DIVERGED, _REPLAYS = 0x80, 0x7F
"""What the last byte of the facts holds."""
_ANY_TOKEN = 1 << 32
"""Vocabulary size when a record is read: the vocabulary was checked at the door."""

_log = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Trajectory)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The facts of one finished member. `writer` and `seq` name its record; `oldest` and `newest` are weight versions
    among its authored tokens (-1: none); `seconds` is what its RUN stage took; `replays` and `diverged` are as in the
    record, counted to 127."""

    writer: str
    seq: int
    group: int
    member: int
    tried: int
    task: int
    tokens: int
    authored: int
    oldest: int
    newest: int
    reward: float
    seconds: float
    purpose: Purpose
    stop_reason: StopReason
    error_class: ErrorClass | None
    row: Row
    replays: int = 0
    diverged: bool = False

    @property
    def ref(self) -> RecordRef:
        """What a manifest calls this record."""
        return RecordRef(writer=self.writer, seq=self.seq, group=self.group, member=self.member)


class TrajectoryWriter:
    """The log of worker incarnation `worker`; `RunDirError` when that name has been used."""

    def __init__(self, run: RunDir, worker: str, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._log = LogWriter(run.trajectory_log(worker), facts_size=FACTS_SIZE)

    def append(self, trajectory: Trajectory) -> int:
        """Buffer a finished trajectory; returns its record number. ValueError says what its tokens violate."""
        problems = check_trajectory(trajectory, self._vocab_size)
        if problems:
            raise ValueError(f"trajectory {trajectory.id} may not be stored: {'; '.join(problems)}")
        return self._log.append(_encoder.encode(trajectory), _facts(trajectory))

    def commit(self) -> None:
        """Return once everything appended is durable and visible to followers."""
        self._log.commit()

    def close(self) -> None:
        """Commit and close, idempotent."""
        self._log.close()


class TrajectoryFollower:
    """Follows the logs of all workers from their first record."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._readers: dict[str, LogReader] = {}
        self._done: set[str] = set()

    def poll(self, dead: Collection[str] = ()) -> list[Entry]:
        """All entries since the last call, each once, per writer in order. Logs of writers named in `dead` are read to
        their last intact record, past a damaged index, and then no more."""
        return [entry for entries in self.chunks(dead) for entry in entries]

    def chunks(self, dead: Collection[str] = ()) -> Iterator[list[Entry]]:
        """As `poll`, a few thousand entries at a time, in constant memory."""
        for writer in fsio.names(self._run.trajectories):
            if writer in self._done or writer.startswith("."):
                continue
            if writer not in self._readers:
                self._readers[writer] = _reader(self._run, writer)
            reader = self._readers[writer]
            for rows in reader.everything() if writer in dead else reader.chunks():
                yield _entries(writer, rows)
            if writer in dead:
                self._done.add(writer)

    @property
    def lost(self) -> int:
        """Records that damage has made unreadable, so far and as far as the indexes tell."""
        return sum(reader.lost for reader in self._readers.values())


def read_trajectory(run: RunDir, ref: RecordRef | Entry) -> Trajectory:
    """The trajectory that `ref` names; `CorruptRecord` when no intact copy of it exists."""
    reader = _reader(run, ref.writer)
    body = reader.read(ref.row) if isinstance(ref, Entry) else reader.find(ref.seq)
    where = f"{reader.folder}: record {ref.seq}"
    trajectory = _decoded(body, where)
    if (trajectory.group, trajectory.member) != (ref.group, ref.member):
        raise CorruptRecord(f"{where} is not member {ref.member} of group {ref.group}")
    return trajectory


def iterate_trajectories(run: RunDir) -> Iterator[Trajectory]:
    """Every intact trajectory of the run, log by log, one in memory at a time; damaged ones are logged and left out."""
    for writer in fsio.names(run.trajectories):
        reader = _reader(run, writer)
        for rows in reader.everything():
            for row in rows:
                try:
                    yield _decoded(reader.read(row), f"{reader.folder}: record {row.seq}")
                except CorruptRecord as error:
                    _log.warning("left out: %s", error)


def _reader(run: RunDir, writer: str) -> LogReader:
    return LogReader(run.trajectory_log(writer), FACTS_SIZE)


def _decoded(body: bytes, where: str) -> Trajectory:
    try:
        trajectory = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"{where} is not a trajectory: {error}") from error
    problems = check_trajectory(trajectory, _ANY_TOKEN)
    if problems:
        raise CorruptRecord(f"{where}: {'; '.join(problems)}")
    return trajectory


def _facts(trajectory: Trajectory) -> bytes:
    oldest, newest = trajectory.versions
    return _FACTS.pack(
        trajectory.group,
        trajectory.member,
        trajectory.tried,
        trajectory.task.task,
        trajectory.tokens,
        trajectory.authored,
        oldest,
        newest,
        trajectory.reward,
        trajectory.timings.run,
        _PURPOSES.index(trajectory.purpose),
        _STOPS.index(trajectory.stop_reason),
        _ERRORS.index(trajectory.error_class),
        min(trajectory.replays, _REPLAYS) | trajectory.diverged * _DIVERGED,
    )


def _entries(writer: str, rows: list[Row]) -> list[Entry]:
    found = []
    purposes, stops, errors = _PURPOSES, _STOPS, _ERRORS
    for row in rows:
        a, b, c, d, e, f, g, h, reward, seconds, purpose, stop, error, boxes = _FACTS.unpack(row.facts)
        kinds = purposes[purpose], stops[stop], errors[error]
        replays, diverged = boxes & _REPLAYS, boxes >= _DIVERGED
        found.append(Entry(writer, row.seq, a, b, c, d, e, f, g, h, reward, seconds, *kinds, row, replays, diverged))
    return found
