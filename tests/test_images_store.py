"""What becomes of stored images: removed when unused, never while in use; copied to nodes; carried away and taken in."""

import io
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from prorl_cli.errors import UserError
from prorl_cli.images import near, stage
from prorl_cli.images.gc import Kept, choose
from prorl_cli.images.holder import Beat, Holder
from prorl_cli.images.shelf import Shelf, copy_hashed
from prorl_cli.images.stage import used
from tests.fake_apptainer import sif
from tests.images_kit import begun, fake, make_definition, store_of
from tests.killing import deaths, fork, wait
from tests.test_images_build import objects, references, until
from tests.test_spool_refused import namespace

__all__ = ["fake"]


def kept(digest, size=1, last_used=0.0, in_use=False):
    return Kept(digest=digest, size=size, last_used=last_used, in_use=in_use)


def chosen(images, **limits):
    asked = {"now": 100.0, "keep_bytes": None, "keep_s": None} | limits
    return [image.digest for image in choose(images, **asked)]


def test_the_longest_unused_go_until_the_rest_fits():
    images = [kept("a", 5, 3.0), kept("b", 5, 1.0), kept("c", 5, 2.0)]
    assert chosen(images, keep_bytes=10) == ["b"]
    assert chosen(images, keep_bytes=9) == ["b", "c"]
    assert chosen(images, keep_bytes=15) == []
    assert chosen(images, keep_bytes=0) == ["b", "c", "a"]


def test_what_was_unused_for_too_long_goes_whatever_fits():
    assert chosen([kept("a", last_used=50), kept("b", last_used=40)], keep_s=55) == ["b"]


def test_without_limits_nothing_goes_and_what_is_in_use_never_does():
    images = [kept("a", in_use=True), kept("b")]
    assert chosen(images) == []
    assert chosen(images, keep_bytes=0, keep_s=0) == ["b"]


def two_images(tmp_path, fake, **settings):
    store = store_of(tmp_path, **settings)
    return store, [store.build(make_definition(tmp_path, name), "scratch", program=fake) for name in ("one", "two")]


def test_gc_removes_an_image_with_its_names_and_keeps_the_one_in_use(tmp_path, fake):
    store, (one, two) = two_images(tmp_path, fake)
    with store.hold(one):
        assert [gone.names for gone in store.gc(keep_bytes=0, dry_run=True)] == [("two (scratch)",)]
        assert len(objects(tmp_path)) == 2
        [removed] = store.gc(keep_bytes=0)
        assert (removed.digest, removed.size) == (two.digest, two.size)
    assert store.images() == [one]
    assert [name[:64] for name in references(tmp_path)] == [one.key]
    assert len(store.gc(keep_bytes=0)) == 1
    assert (objects(tmp_path), references(tmp_path)) == ([], {})
    with pytest.raises(UserError, match="the image two is gone"), store.hold(two):
        pass


def test_the_least_recently_held_goes_first(tmp_path, fake):
    store, (one, two) = two_images(tmp_path, fake)
    for image in (two, one):
        with store.hold(image):
            time.sleep(0.05)
    assert [gone.digest for gone in store.gc(keep_bytes=one.size)] == [two.digest]


def test_the_use_of_a_killed_process_of_this_node_is_over(tmp_path, fake):
    store, (one, _) = two_images(tmp_path, fake)

    def use():
        with store.hold(one):
            (tmp_path / "held").touch()
            time.sleep(60)

    pid = fork(use)
    until((tmp_path / "held").exists)
    assert store.gc(keep_s=0, dry_run=True)[0].digest != one.digest
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    assert len(store.gc(keep_s=0)) == 2


def test_a_use_of_another_node_is_over_by_silence_alone(tmp_path, fake):
    store, (one, two) = two_images(tmp_path, fake, grace_s=2.0)
    elsewhere = Holder(token="0" * 16, node="other", boot="another", namespace=1, pid=1, started=0.0)
    for image in (one, two):
        (tmp_path / "cache" / "uses" / image.digest).mkdir()
    dead = Beat(tmp_path / "cache" / "uses" / one.digest / "use-1", elsewhere, 2.0)
    dead.write()
    with Beat(tmp_path / "cache" / "uses" / two.digest / "use-2", elsewhere, 2.0):
        for dry_run in (True, False):
            started = time.monotonic()
            assert [gone.digest for gone in store.gc(keep_bytes=0, dry_run=dry_run)] == [one.digest]
            assert time.monotonic() - started >= 2.0


def test_what_killed_processes_left_goes_and_work_in_progress_stays(tmp_path, fake):
    store, (one, two) = two_images(tmp_path, fake)
    cache = tmp_path / "cache"
    old, new = cache / "objects" / ".tmp-old", cache / "objects" / ".tmp-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    one.path.unlink()
    young, nobodys = (cache / "objects" / f"sha256-{digit * 64}.sif" for digit in "01")
    lease, unasked, unused = cache / "leases" / two.key, cache / "leases" / one.key, cache / "uses" / ("2" * 64)
    unused.mkdir()
    for path in (*unasked.iterdir(), unasked, unused):
        os.utime(path, (1, 1))
    for path in (young, nobodys, lease / "waiting-1"):
        path.write_bytes(b"")
    for path in (nobodys, lease / "waiting-1"):
        os.utime(path, (1, 1))
    assert store.gc() == []
    assert (old.exists(), new.exists()) == (False, True)
    assert (nobodys.exists(), young.exists(), (lease / "waiting-1").exists()) == (False, True, False)
    assert [name[:64] for name in references(tmp_path)] == [two.key]
    assert (lease.exists(), unasked.exists(), unused.exists()) == (True, False, False)


def shelve(tmp_path, manifest, data, number=1):
    """Publish `data` as what `manifest` says, with its own digest and size."""
    shelf = Shelf(tmp_path / "cache")
    with shelf.incoming() as (file, path):
        digest = copy_hashed(io.BytesIO(data), file)
        new = msgspec.structs.replace(manifest, digest=digest, size=len(data), number=number)
        return shelf.publish(path, new)


def test_what_was_published_under_a_number_stays(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    before = references(tmp_path)
    again = shelve(tmp_path, image.manifest, sif("another"), number=image.manifest.number)
    assert references(tmp_path) == before
    assert again == image == store.find(image.key)


def test_a_publisher_killed_at_any_system_call_leaves_a_whole_image_or_none(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    published = []

    def publish(k, tell):
        shelve(tmp_path, image.manifest, sif(f"image {k}"), number=k + 1)
        tell("published")

    for k, told in deaths(publish):
        found = store.find(image.key)
        assert found is not None
        assert store.verify(found) == ""
        assert found.path.read_bytes() == sif(f"image {k}") or (not told and found.manifest.number <= k)
        published += told
    assert len(published) == 1
    assert k > 10


def test_staging_makes_one_proven_copy_for_all_workers_of_a_node(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    node = tmp_path / "node"
    pids = [fork(lambda: store.stage(image, node)) for _ in range(4)]
    assert [wait(pid) for pid in pids] == [0] * 4
    copy = store.stage(image, node)
    before = copy.stat()
    assert (store.stage(image, node), copy.stat().st_ino) == (copy, before.st_ino)
    assert copy.read_bytes() == image.path.read_bytes()
    assert sorted(os.listdir(node)) == sorted([copy.name, ".prorl-lock"])
    copy.chmod(0o644)
    copy.write_bytes(b"half")
    assert store.stage(image, node).read_bytes() == image.path.read_bytes()


def test_a_copy_of_a_damaged_image_is_refused(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    image.path.chmod(0o644)
    image.path.write_bytes(image.path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="is damaged: `prorl cache build` makes it anew"):
        store.stage(image, tmp_path / "node")
    assert os.listdir(tmp_path / "node") == [".prorl-lock"]


def test_an_unpacked_copy_is_made_once_and_left_whole(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    folder = store.stage(image, tmp_path / "node", unpacked=True, program=fake)
    assert (folder / "whole").read_bytes() == image.path.read_bytes()
    (folder / "mark").touch()
    assert store.stage(image, tmp_path / "node", unpacked=True, program=fake) == folder
    assert (folder / "mark").exists()
    assert sorted(os.listdir(tmp_path / "node")) == sorted([folder.name, ".prorl-lock"])


def test_a_worker_killed_while_it_unpacks_takes_the_program_with_it_before_the_next_begins(tmp_path, fake, monkeypatch):
    store, (image, _) = two_images(tmp_path, fake)
    node = tmp_path / "node"
    monkeypatch.setenv("FAKE_SLEEP", "60")
    killed = fork(lambda: store.stage(image, node, unpacked=True, program=fake))
    until(lambda: unpacking(node))
    monkeypatch.setenv("FAKE_SLEEP", "0")
    os.kill(killed, signal.SIGKILL)
    wait(killed)
    folder = store.stage(image, node, unpacked=True, program=fake)
    assert unpacking(node) == []
    assert (folder / "whole").read_bytes() == image.path.read_bytes()
    assert sorted(os.listdir(node)) == sorted([folder.name, ".prorl-lock"])


def unpacking(node):
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if "--sandbox" in words and any(str(node) in word for word in words)]


def test_copies_that_nobody_uses_make_room_for_a_new_one_the_longest_unused_first(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(stage, "KEPT", 2)
    store, images = store_of(tmp_path), []
    for name in ("one", "two", "three", "four"):
        images.append(store.build(make_definition(tmp_path, name), "scratch", program=fake))
    node = tmp_path / "node"
    half = node / ".prorl-partial-of-a-killed-worker"
    half.mkdir(parents=True)
    with used(images[0], node, fake) as first:
        for age, image in ((2, images[1]), (1, images[2])):
            with used(image, node, fake) as copy:
                pass
            os.utime(copy, (time.time() - age, time.time() - age))
        os.utime(first, (1, 1))
        with used(images[3], node, fake) as last:
            assert sorted(node.iterdir()) == sorted([first, copy, last, node / ".prorl-lock"])
    with used(images[3], node, fake) as last:
        assert sorted(node.iterdir()) == sorted([first, last, node / ".prorl-lock"]), "its use ended later"


def test_a_copy_that_was_unused_for_days_is_made_again_for_it_may_have_holes(tmp_path, fake):
    _, (image, _) = two_images(tmp_path, fake)
    node = tmp_path / "node"
    with used(image, node, fake) as copy:
        (copy / "whole").unlink()
        begun = time.time() - 4 * 86400
        os.utime(copy, (begun, begun))
    assert copy.stat().st_mtime > time.time() - 3600, "it counts from the end of its use"
    with used(image, node, fake) as copy:
        assert not (copy / "whole").exists()
    os.utime(copy, (begun, begun - 2 * 86400))
    with used(image, node, fake) as copy:
        assert (copy / "whole").read_bytes() == image.path.read_bytes()


def test_what_others_have_in_the_folder_stays(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    theirs = tmp_path / "mine" / "partial-results"
    theirs.mkdir(parents=True)
    store.stage(image, tmp_path / "mine")
    assert theirs.is_dir()


def test_a_worker_goes_by_the_path_alone_and_a_path_outside_is_left_alone(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    store, (image, _) = two_images(tmp_path, fake)
    with near(image.path, tmp_path / "node") as copy:
        assert store.gc(keep_bytes=0, dry_run=True)[0].digest != image.digest
        assert (copy / "whole").read_bytes() == image.path.read_bytes()
    other = tmp_path / "mine.sif"
    with near(other, tmp_path / "node") as copy:
        assert copy == other
    image.path.unlink()
    with pytest.raises(UserError, match="is gone or damaged"), near(image.path, tmp_path / "node"):
        pass


def test_an_image_travels_by_pickle_as_submitit_sends_it(tmp_path, fake):
    _, (image, _) = two_images(tmp_path, fake)
    assert pickle.loads(pickle.dumps(image)) == image


def test_an_exported_image_is_taken_in_elsewhere_under_its_key(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    store.export(image, tmp_path / "one.tar")
    other = store_of(tmp_path / "elsewhere")
    taken = other.import_(tmp_path / "one.tar")
    assert (taken.key, taken.digest, other.verify(taken)) == (image.key, image.digest, "")
    assert other.find("one") == taken == other.find(image.key)
    assert other.import_(tmp_path / "one.tar").manifest.number == 2
    definition = make_definition(tmp_path, "lock")
    built = store.build(definition, program=fake)
    store.export(built, tmp_path / "lock.tar")
    other.import_(tmp_path / "lock.tar")
    count = begun(tmp_path)
    assert other.build(definition, program=fake).digest == built.digest
    assert begun(tmp_path) == count


def rewritten(path, change):
    """The archive with its members' bytes changed by `change(name, data)`; None leaves one out."""
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            if (new := change(name, data)) is not None:
                head = tarfile.TarInfo(new[0])
                head.size = len(new[1])
                archive.addfile(head, io.BytesIO(new[1]))


BAD_ARCHIVES = {
    "a byte": (lambda n, d: (n, d[:-1] + b"?") if n == "image.sif" else (n, d), "is damaged"),
    "cut": (lambda n, d: (n, d[:-1]) if n == "image.sif" else (n, d), "is damaged"),
    "no image": (lambda n, d: None if n == "image.sif" else (n, d), "it should hold image.sif here"),
    "no manifest": (lambda n, d: None if n == "manifest.json" else (n, d), "it should hold manifest.json here"),
    "other name": (lambda n, d: ("../x", d), "it should hold manifest.json here"),
    "no manifest in it": (lambda n, d: (n, b"{}") if n == "manifest.json" else (n, d), "its manifest: "),
    "key": (lambda n, d: (n, d.replace(b'"key": "', b'"key": "../')), "another version"),
}


def test_a_changed_archive_is_refused_and_leaves_nothing(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    for name, (change, words) in BAD_ARCHIVES.items():
        store.export(image, tmp_path / "one.tar")
        rewritten(tmp_path / "one.tar", change)
        with pytest.raises(UserError, match=words):
            store_of(tmp_path / "elsewhere").import_(tmp_path / "one.tar")
        assert objects(tmp_path / "elsewhere") == [], name


def test_an_archive_that_ends_early_or_is_none_is_refused(tmp_path, fake):
    store, (image, _) = two_images(tmp_path, fake)
    store.export(image, tmp_path / "one.tar")
    data = (tmp_path / "one.tar").read_bytes()
    for size in (0, 100, 600, data.index(b"run-singularity")):
        (tmp_path / "cut.tar").write_bytes(data[:size])
        with pytest.raises(UserError, match=r"cut\.tar"):
            store_of(tmp_path / "elsewhere").import_(tmp_path / "cut.tar")
    with pytest.raises(UserError, match="there is no"):
        store.import_(tmp_path / "nothere.tar")
    with pytest.raises(UserError, match="cannot write"):
        store.export(image, tmp_path / "nofolder" / "one.tar")


def test_a_full_and_a_read_only_cache_are_said_in_words_and_what_is_there_is_used(tmp_path, fake):
    command = [*namespace(), sys.executable, "-m", "tests.images_refused", str(tmp_path), fake.path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
