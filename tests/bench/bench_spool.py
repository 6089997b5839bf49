"""What the spool costs against one raw write + fsync of the same bytes, and how fast its index is followed.

    python -m tests.bench.bench_spool OUT.json

Writes `[{"cell", "ours", "peer", "unit", "ratio", "bar", "met"}]`: medians over rounds that alternate the arms in one
run, the ratio being the median of the rounds' ratios. Where there is no peer, `peer` is the bar itself.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from prorl_cli.rundir import RunDir
from prorl_cli.spool.log import LogWriter
from prorl_cli.spool.log.format import INDEX_MAGIC, Layout, Row
from prorl_cli.spool.trajectories import FACTS_SIZE, TrajectoryFollower, TrajectoryWriter, _facts
from tests.spool_world import VOCAB, sequence, trajectory

RECORD, COMMITS, ROUNDS = 64 << 10, 8, 7
ENTRIES = 1_000_000
MB = 1e6


def raw(path: Path, data: bytes) -> float:
    """Bytes per second of `COMMITS` times one write + fsync of `data`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    start = time.perf_counter()
    for _ in range(COMMITS):
        os.write(fd, data)
        os.fsync(fd)
    seconds = time.perf_counter() - start
    os.close(fd)
    return COMMITS * len(data) / seconds


def appended(folder: Path, body: bytes, count: int) -> float:
    """Bytes per second of `COMMITS` commits of `count` records."""
    writer = LogWriter(folder, facts_size=FACTS_SIZE)
    facts = bytes(FACTS_SIZE)
    start = time.perf_counter()
    for _ in range(COMMITS):
        for _ in range(count):
            writer.append(body, facts)
        writer.commit()
    seconds = time.perf_counter() - start
    writer.close()
    return COMMITS * count * len(body) / seconds


def finished(run: RunDir, worker: str, count: int) -> float:
    """As `appended`, with whole trajectories: checked at the door, encoded, appended."""
    made = [trajectory(n, sequences=(sequence(7200, 3600),), tool_calls=()) for n in range(count)]
    size = sum(9 * each.tokens for each in made)
    writer = TrajectoryWriter(run, worker, VOCAB)
    start = time.perf_counter()
    for _ in range(COMMITS):
        for each in made:
            writer.append(each)
        writer.commit()
    seconds = time.perf_counter() - start
    writer.close()
    return COMMITS * size / seconds


def append_cell(root: Path, mebibytes: int) -> dict[str, object]:
    """Records of 64 KiB in commits of `mebibytes` MiB."""
    body, count = os.urandom(RECORD), (mebibytes << 20) // RECORD
    rounds = [
        (appended(root / f"log-{n}", body, count), raw(root / f"raw-{n}", body * count)) for n in range(ROUNDS)
    ]  # fmt: skip
    return versus(f"append: 64 KiB records, commits of {mebibytes} MiB", rounds, 0.4)


def trajectory_cell(root: Path, mebibytes: int) -> dict[str, object]:
    """Trajectories of 7200 tokens (65 kB) in commits of `mebibytes` MiB, checks included."""
    run, count = RunDir(root / "run"), (mebibytes << 20) // RECORD
    run.create()
    data = os.urandom(count * 9 * 7200)
    rounds = [(finished(run, f"worker-{n}", count), raw(root / f"raw-{n}", data)) for n in range(ROUNDS)]
    return versus(f"append: trajectories of 7200 tokens, commits of {mebibytes} MiB", rounds, 0.25)


def versus(cell: str, rounds: list[tuple[float, float]], bar: float) -> dict[str, object]:
    """One row from pairs of (ours, peer) in bytes per second."""
    ours, peer = (statistics.median(arm) / MB for arm in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    return row(cell, ours, peer, "MB/s", ratio, bar, ratio >= bar)


def row(cell: str, ours: float, peer: float, unit: str, ratio: float, bar: float, met: bool) -> dict[str, object]:
    return {
        "cell": cell, "ours": round(ours, 1), "peer": round(peer, 1), "unit": unit, "ratio": round(ratio, 3),
        "bar": bar, "met": met,
    }  # fmt: skip


def tail_cells(root: Path) -> list[dict[str, object]]:
    """Follow `ENTRIES` index entries from the first; entries a second, and how much memory grows meanwhile."""
    run = RunDir(root / "run")
    run.create()
    write_index(run.trajectory_log("worker"), ENTRIES)
    speeds = []
    before = peak_mib()
    for _ in range(3):
        start, seen = time.perf_counter(), 0
        for entries in TrajectoryFollower(run).chunks():
            seen += len(entries)
        speeds.append(seen / (time.perf_counter() - start))
        assert seen == ENTRIES
    speed, grown = statistics.median(speeds), peak_mib() - before
    return [
        row(f"tail: {ENTRIES} index entries", speed, 200_000, "entries/s", speed / 200_000, 1.0, speed >= 200_000),
        row(f"tail: memory for {ENTRIES} entries", grown, 64, "MiB", grown / 64, 1.0, grown <= 64),
    ]


def write_index(folder: Path, count: int) -> None:
    """An index as a writer of `count` small trajectories leaves it."""
    folder.mkdir()
    layout, facts = Layout.of(folder, FACTS_SIZE), _facts(trajectory())
    with open(folder / "index", "wb") as file:
        file.write(layout.file_header(INDEX_MAGIC, 1))
        for seq in range(count):
            file.write(layout.pack_entry(Row(seq, 1, 64 + seq * 1000, 1000, facts)))


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(out: Path) -> None:
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=out.absolute().parent) as folder:
        for number, cells in enumerate(
            [
                tail_cells,
                lambda root: [append_cell(root, 4)],
                lambda root: [append_cell(root, 16)],
                lambda root: [trajectory_cell(root, 4)],
            ]
        ):
            root = Path(folder) / str(number)
            root.mkdir()
            rows += cells(root)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    for each in rows:
        print(*(f"{name} {value}" for name, value in each.items()), sep="  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
