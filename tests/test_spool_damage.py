"""A log cut or flipped at any byte: reported with file and offset, and every record whose own bytes are intact is read.

Small logs, in-process: every byte of every file, then thousands of random compounds.
"""

import random
import shutil

import pytest

from prorl_cli.errors import CorruptRecord
from prorl_cli.spool.log import LogReader, LogWriter, scan

FACTS = 6
BODIES = [bytes((7 * k + j) % 256 for j in range(size)) for k, size in enumerate([0, 1, 40, 3, 90, 5, 17, 64, 2])]


class Log:
    """A closed log of a few segments, and what its bytes are; `damage` is undone by `restore`."""

    def __init__(self, folder):
        self.folder = folder
        writer = LogWriter(folder, facts_size=FACTS, roll_bytes=200)
        for number, body in enumerate(BODIES):
            writer.append(body, number.to_bytes(FACTS, "little"))
            if number % 2:
                writer.commit()
        writer.close()
        self.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        self.rows = LogReader(folder, FACTS).poll()
        self.now = dict(self.files)

    def set(self, name, data):
        self.now[name] = data
        (self.folder / name).write_bytes(data)

    def restore(self):
        for name, data in self.files.items():
            if self.now[name] is not data:
                self.set(name, data)

    def intact(self):
        """Numbers of the records whose own bytes are as they were written."""
        found = []
        for row in self.rows:
            name, end = f"{row.segment:06d}.seg", row.offset + row.length
            if self.now[name][row.offset : end] == self.files[name][row.offset : end]:
                found.append(row.seq)
        return found

    def read(self):
        """Numbers of the records that a reader gets, each checked byte for byte."""
        reader, found = LogReader(self.folder, FACTS), []
        for row in (row for rows in reader.everything() for row in rows):
            try:
                body = reader.read(row)
            except CorruptRecord as error:
                assert str(self.folder) in str(error) and f"offset {row.offset}" in str(error)
                continue
            assert body == BODIES[row.seq] and row.facts == row.seq.to_bytes(FACTS, "little")
            found.append(row.seq)
        return found

    def findable(self):
        """Numbers of the records that are found by number alone, as a manifest asks for them."""
        reader, found = LogReader(self.folder, FACTS), []
        for seq, body in enumerate(BODIES):
            try:
                assert reader.find(seq) == body
                found.append(seq)
            except CorruptRecord as error:
                assert str(self.folder) in str(error)
        return found

    def findings(self, dead=True):
        return list(scan(self.folder, FACTS, writer_dead=dead))


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path / "run" / "log")
    assert len(made.files) >= 4
    assert made.read() == made.findable() == made.intact() == list(range(len(BODIES)))
    assert made.findings() == []
    return made


def check(log, name, place):
    """What holds after the byte `place` of file `name` was touched."""
    assert log.read() == log.intact()
    found = [finding for finding in log.findings() if finding.file.name == name]
    assert found, f"{name}: byte {place}: nothing reported"
    assert min(finding.offset for finding in found) <= place
    return found


@pytest.mark.parametrize("bits", [0x01, 0xFF])
def test_a_flip_at_any_byte_is_reported_there_and_costs_at_most_its_own_record(log, bits):
    for name, data in log.files.items():
        for place in range(len(data)):
            log.set(name, data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :])
            found = check(log, name, place)
            assert {finding.kind for finding in found} == {"corrupt"}, f"{name}: byte {place}: {found}"
            assert len(log.intact()) >= len(BODIES) - 1
        log.restore()


def test_a_cut_at_any_byte_is_reported_there_and_costs_only_what_was_cut(log):
    for name, data in log.files.items():
        for length in range(len(data)):
            log.set(name, data[:length])
            found = check(log, name, length)
            assert {finding.kind for finding in found} == {"truncated"}, f"{name}: cut at {length}: {found}"
        log.restore()


def test_a_manifest_finds_every_intact_record_by_number_after_a_flip_or_a_cut_anywhere(log):
    for name, data in log.files.items():
        for place in range(0, len(data), 5):
            for damaged in (data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], data[:place]):
                log.set(name, damaged)
                assert log.findable() == log.intact(), f"{name}: byte {place}"
        log.restore()


def test_a_follower_of_a_living_writer_sees_past_a_flip_anywhere_in_the_index(log):
    index = log.files["index"]
    for place in range(len(index)):
        log.set("index", index[:place] + bytes([index[place] ^ 16]) + index[place + 1 :])
        reader = LogReader(log.folder, FACTS)
        assert [row.seq for row in reader.poll()] == list(range(len(BODIES)))
        assert log.findings(dead=False)


def test_a_missing_file_is_reported_and_costs_only_what_it_held(log):
    for name, data in log.files.items():
        (log.folder / name).unlink()
        log.now[name] = b""
        found = [finding for finding in log.findings() if finding.file.name == name]
        assert [(finding.offset, finding.kind) for finding in found] == [(0, "truncated")]
        assert log.read() == log.intact()
        log.set(name, data)


def damage_of(rng, data):
    """One random compound of flips, cuts, blanks and foreign bytes."""
    kind, place = rng.randrange(5), rng.randrange(len(data))
    width = min(rng.randrange(1, 40), len(data) - place)
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes(width) + data[place + width :]
    if kind == 2:
        return data[:place] + rng.randbytes(width) + data[place + width :]
    if kind == 3:
        return data + rng.randbytes(width)
    source = rng.randrange(len(data))
    return data[:place] + data[source : source + width] + data[place + width :]


@pytest.mark.parametrize("seed", range(4))
def test_no_compound_of_damages_crashes_a_reader_or_hides_an_intact_record(log, seed):
    rng = random.Random(seed)
    for _ in range(150):
        for name in rng.sample(sorted(log.files), rng.randrange(1, 3)):
            for _ in range(rng.randrange(1, 4)):
                log.set(name, damage_of(rng, log.now[name] or b"\0"))
        changed = {name for name, data in log.files.items() if log.now[name][: len(data)] != data}
        assert set(log.read()) == set(log.intact()) == set(log.findable())
        assert changed <= {finding.file.name for finding in log.findings()}
        log.restore()


def test_damage_costs_no_more_memory_than_a_record(tmp_path):
    """A length field that claims gigabytes is refused before memory is spent on it."""
    made = Log(tmp_path / "log")
    name, row = "000001.seg", made.rows[1]
    data = bytearray(made.files[name])
    data[row.offset + 4 : row.offset + 8] = b"\xff\xff\xff\x7f"
    made.set(name, bytes(data))
    assert made.read() == made.intact() == [n for n in range(len(BODIES)) if n != 1]
    shutil.rmtree(tmp_path / "log")
