"""Builds by real processes, with a program that plays Apptainer: one builds for all, whoever dies meanwhile."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from prorl_cli.errors import UserError
from prorl_cli.images import BuildFailed, build, key
from prorl_cli.images.holder import Holder, holder_here
from prorl_cli.images.key import facts_here
from prorl_cli.images.lease import Lease
from tests.images_kit import begun, fake, make_definition, store_of
from tests.killing import fork, wait

__all__ = ["fake"]

GRACE_S = 6.0
"""The machine may be busy."""


def until(true, seconds=30):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


def builder(tmp_path, program, definition, number, mode="lock"):
    """The id of a process that builds, and leaves the digest, or what was raised, in `answer-<number>`."""

    def act():
        store = store_of(tmp_path, grace_s=GRACE_S)
        try:
            answer = store.build(definition, mode, program=program).digest
        except BuildFailed as error:
            answer = f"failed: {error}"
        (tmp_path / f"answer-{number}").write_text(answer)

    return fork(act)


def answers(tmp_path):
    return [path.read_text() for path in sorted(tmp_path.glob("answer-*"))]


def objects(tmp_path):
    return sorted(os.listdir(tmp_path / "cache" / "objects"))


def test_an_image_is_built_once_and_found_by_key_name_and_digest(tmp_path, fake):
    store, lines = store_of(tmp_path), []
    definition = make_definition(tmp_path)
    built = store.build(definition, program=fake, tell=lambda *line: lines.append(line))
    again = store.build(definition, program=fake, tell=lambda *line: lines.append(line))
    assert again == built == store.find(built.key) == store.find("fake") == store.find(built.digest[:12])
    assert begun(tmp_path) == 1
    assert [stage for stage, _ in lines][-2:] == ["publishing", "reused"]
    assert ("building", "INFO:    building") in lines
    assert oct(built.path.stat().st_mode & 0o777) == "0o444"
    made = built.manifest
    assert made.packages == {"pip": ["numpy==2.0"], "system": ["bash=5.2"]}
    assert (made.bash, made.python, made.runtime) == ("5.2.15", "3.11.2", "apptainer 1.4.5")
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.soak
def test_ten_builders_at_once_build_once_and_use_the_same_image(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_SLEEP", "1")
    definition = make_definition(tmp_path)
    pids = [builder(tmp_path, fake, definition, number) for number in range(10)]
    assert [wait(pid) for pid in pids] == [0] * 10
    assert begun(tmp_path) == 1
    assert objects(tmp_path) == [f"sha256-{digest}.sif" for digest in set(answers(tmp_path))]
    assert len(answers(tmp_path)) == 10


@pytest.mark.soak
def test_a_winner_killed_in_its_build_is_followed_by_another_and_leaves_no_process_and_no_folder(
    tmp_path, fake, monkeypatch
):
    monkeypatch.setenv("FAKE_SLEEP", "60")
    monkeypatch.setenv("FAKE_CHILD", "sleep 31415")
    definition = make_definition(tmp_path)
    first = builder(tmp_path, fake, definition, 1)
    until(lambda: begun(tmp_path) == 1)
    until(lambda: left_at_work())
    monkeypatch.setenv("FAKE_SLEEP", "0")
    monkeypatch.setenv("FAKE_CHILD", "")
    others = [builder(tmp_path, fake, definition, number) for number in (2, 3)]
    os.kill(first, signal.SIGKILL)
    started = time.monotonic()
    assert [wait(pid) for pid in (first, *others)] == [-signal.SIGKILL, 0, 0]
    assert time.monotonic() - started < 15
    assert begun(tmp_path) == 2
    assert len(set(answers(tmp_path))) == 1
    until(lambda: not left_at_work())
    until(lambda: os.listdir(tmp_path / "scratch") == [])


def left_at_work():
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "31415"]]


@pytest.mark.soak
def test_a_stopped_winner_is_followed_and_publishes_nothing_when_it_comes_back(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_SLEEP", "1")
    definition = make_definition(tmp_path)
    stale = builder(tmp_path, fake, definition, 1)
    until(lambda: begun(tmp_path) == 1)
    os.kill(stale, signal.SIGSTOP)
    second = builder(tmp_path, fake, definition, 2)
    assert wait(second) == 0
    before = references(tmp_path), objects(tmp_path)
    os.kill(stale, signal.SIGCONT)
    assert wait(stale) == 0
    assert begun(tmp_path) == 2
    assert (references(tmp_path), objects(tmp_path)) == before
    assert len(set(answers(tmp_path))) == 1


def references(tmp_path):
    return {path.name: path.read_bytes() for path in (tmp_path / "cache" / "refs").rglob("*.json")}


def test_a_holder_of_another_node_loses_its_claim_by_silence_alone(tmp_path, fake):
    store, definition = store_of(tmp_path, grace_s=GRACE_S), make_definition(tmp_path)
    store._shelf.prepare()
    folder = tmp_path / "cache" / "leases" / key(definition, "lock", facts_here())
    folder.mkdir()
    elsewhere = Lease(folder)
    elsewhere.holder = Holder(token="0" * 16, node="other", boot="another", namespace=1, pid=1, started=0.0)
    assert elsewhere.claim(1)
    lines, started = [], time.monotonic()
    image = store.build(definition, program=fake, tell=lambda *line: lines.append(line))
    assert GRACE_S <= time.monotonic() - started < 10 * GRACE_S
    assert lines[0] == ("waiting", "process 1 of other builds it")
    assert image.manifest.number == 2


def test_a_process_that_is_gone_from_this_kernel_is_known_to_be():
    pid = fork(lambda: time.sleep(60))
    here = holder_here()
    zombie = Holder(**{**as_dict(here), "pid": pid, "started": psutil.Process(pid).create_time()})
    assert not here.gone and not zombie.gone
    os.kill(pid, signal.SIGKILL)
    until(lambda: zombie.gone)
    wait(pid)
    assert zombie.gone
    assert Holder(**{**as_dict(here), "pid": pid}).gone
    assert Holder(**{**as_dict(here), "started": here.started - 100}).gone
    assert not Holder(**{**as_dict(here), "pid": pid, "boot": "another"}).gone


def as_dict(holder):
    return {name: getattr(holder, name) for name in holder.__struct_fields__}


def test_a_failure_leaves_its_log_and_no_image_and_those_who_waited_do_not_repeat_it(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "While performing build: no such thing")
    monkeypatch.setenv("FAKE_SLEEP", "2")
    definition = make_definition(tmp_path)
    first = builder(tmp_path, fake, definition, 1)
    until(lambda: begun(tmp_path) == 1)
    others = [builder(tmp_path, fake, definition, number) for number in (2, 3)]
    assert [wait(pid) for pid in (first, *others)] == [0, 0, 0]
    assert begun(tmp_path) == 1
    assert objects(tmp_path) == []
    assert answers(tmp_path)[0].startswith(
        "failed: fake: FATAL:   While performing build: no such thing (exit code 255)"
    )
    assert answers(tmp_path)[1].startswith(
        "failed: fake: another builder failed: FATAL:   While performing build: no s"
    )
    log = Path(answers(tmp_path)[1].rpartition("its log is ")[2])
    assert "no such thing" in log.read_text()
    assert list((tmp_path / "scratch").iterdir()) == []
    monkeypatch.setenv("FAKE_FAIL", "")
    monkeypatch.setenv("FAKE_SLEEP", "0")
    assert store_of(tmp_path).build(definition, program=fake).manifest.number == 2


def test_what_one_node_cannot_those_who_waited_try(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL", "mksquashfs: no space left on device")
    monkeypatch.setenv("FAKE_TIMES", "1")
    monkeypatch.setenv("FAKE_SLEEP", "1")
    definition = make_definition(tmp_path)
    first = builder(tmp_path, fake, definition, 1)
    until(lambda: begun(tmp_path) == 1)
    assert [wait(pid) for pid in (first, builder(tmp_path, fake, definition, 2))] == [0, 0]
    assert answers(tmp_path)[0].startswith("failed: fake: the node's disk is full")
    assert objects(tmp_path) == [f"sha256-{answers(tmp_path)[1]}.sif"]


def test_a_build_is_tried_again_after_half_an_answer_of_a_registry_and_not_after_an_error_of_its_own(
    tmp_path, fake, monkeypatch
):
    monkeypatch.setattr(build, "RETRY_S", (0.0, 0.0))
    monkeypatch.setenv("FAKE_FAIL", "unexpected end of JSON input")
    monkeypatch.setenv("FAKE_TIMES", "2")
    definition = make_definition(tmp_path)
    store_of(tmp_path).build(definition, program=fake)
    assert begun(tmp_path) == 3
    monkeypatch.setenv("FAKE_TIMES", "100")
    with pytest.raises(BuildFailed, match="half an answer"):
        store_of(tmp_path).build(definition, "scratch", program=fake)
    assert begun(tmp_path) == 6
    monkeypatch.setenv("FAKE_FAIL", "an error of its own")
    with pytest.raises(BuildFailed, match=r"FATAL: +an error of its own \(exit code 255\)"):
        store_of(tmp_path).build(definition, "scratch", program=fake)
    assert begun(tmp_path) == 7


def test_an_image_that_the_builder_left_half_written_is_not_published(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_DAMAGE", "10")
    with pytest.raises(BuildFailed, match=r"left no image that can be used: .* is truncated"):
        store_of(tmp_path).build(make_definition(tmp_path), program=fake)
    assert objects(tmp_path) == []
    assert references(tmp_path) == {}


@pytest.mark.parametrize("what", ["input.txt", "base/bin/sh"])
def test_what_changed_since_it_was_hashed_is_not_built_into_an_image_of_that_key(tmp_path, fake, what):
    definition = make_definition(tmp_path)
    (tmp_path / what).write_text("something else")
    with pytest.raises(BuildFailed, match="changed"):
        store_of(tmp_path).build(definition, program=fake)
    assert references(tmp_path) == {}


def test_a_base_that_is_gone_is_no_fault_of_the_cache(tmp_path, fake):
    definition = make_definition(tmp_path)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(BuildFailed, match="/base cannot be read any more: No such file or directory"):
        store_of(tmp_path).build(definition, program=fake)


def test_scratch_builds_anew_each_time_and_the_newest_is_found(tmp_path, fake):
    store, definition = store_of(tmp_path), make_definition(tmp_path)
    images = [store.build(definition, "scratch", program=fake) for _ in range(3)]
    assert [image.manifest.number for image in images] == [1, 2, 3]
    assert begun(tmp_path) == 3
    assert store.find(images[0].key) == store.find("fake") == images[2]
    assert store.images() == [images[2]]


def test_versioned_goes_by_what_is_declared(tmp_path, fake):
    store = store_of(tmp_path)
    first = store.build(make_definition(tmp_path), "versioned", program=fake)
    (tmp_path / "fake.def").write_text((tmp_path / "fake.def").read_text() + "\n# a comment\n")
    definition = make_definition(tmp_path, text=(tmp_path / "fake.def").read_text())
    assert store.build(definition, "versioned", program=fake) == first
    assert store.build(make_definition(tmp_path, number="2"), "versioned", program=fake) != first
    assert begun(tmp_path) == 2


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: b""],
    ids=["short", "changed", "empty"],
)
def test_a_stored_image_that_lost_or_changed_a_byte_is_never_used_and_built_anew(tmp_path, fake, damage):
    store, definition = store_of(tmp_path), make_definition(tmp_path)
    image = store.build(definition, program=fake)
    image.path.chmod(0o644)
    image.path.write_bytes(damage(image.path.read_bytes()))
    assert store.find(image.key) is None
    assert store.images() == []
    assert store.verify(image) != ""
    again = store.build(definition, program=fake)
    assert (begun(tmp_path), again.manifest.number) == (2, 2)
    assert store.verify(again) == ""


def test_an_image_that_was_damaged_and_comes_out_the_same_replaces_the_damaged_file(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE_SAME", "yes")
    text = "Bootstrap: localimage\nFrom: base\n"
    store, definition = store_of(tmp_path), make_definition(tmp_path, text=text)
    image = store.build(definition, program=fake)
    image.path.chmod(0o644)
    image.path.write_bytes(image.path.read_bytes()[:-1])
    again = store.build(definition, program=fake)
    assert (again.path, again.digest) == (image.path, image.digest)
    assert store.verify(again) == ""
    assert store.find(image.key) == again


def test_a_manifest_that_was_cut_short_counts_as_none(tmp_path, fake):
    store, definition = store_of(tmp_path), make_definition(tmp_path)
    image = store.build(definition, program=fake)
    [path] = (tmp_path / "cache" / "refs").rglob("*.json")
    path.write_bytes(path.read_bytes()[:50])
    assert store.find(image.key) is None
    assert store.build(definition, program=fake).manifest.number == 2


def test_a_claim_keeps_its_last_word_and_no_heartbeat(tmp_path, fake):
    store, definition = store_of(tmp_path), make_definition(tmp_path)
    store.build(definition, program=fake)
    [lease] = (tmp_path / "cache" / "leases").iterdir()
    assert {name.rpartition(".")[2] for name in os.listdir(lease)} == {"claim", "end"}
    assert json.loads((lease / "000001.end").read_text())["outcome"] == "built"


def test_versioned_without_a_version_is_refused(tmp_path, fake):
    definition = make_definition(tmp_path, text="Bootstrap: localimage\nFrom: base\n")
    with pytest.raises(UserError, match="declares no version"):
        store_of(tmp_path).build(definition, "versioned", program=fake)
