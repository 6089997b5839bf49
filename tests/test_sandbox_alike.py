"""Boxes that begin with what another has written, as the siblings of a group from one that was warmed up."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from prorl_cli.errors import InfraError
from prorl_cli.sandbox.boxed.cloning import clone, ensure_folder
from tests.sandbox_kit import RUNTIMES, box_processes, look, opened, probe, zygote_of
from tests.test_sandbox_roots import settings  # noqa: F401 - a fixture

WARM = """
    import os
    os.makedirs("repo/deep")
    open("repo/deep/file", "w").write("x" * 100_000)
    os.link("repo/deep/file", "repo/same")
    os.symlink("/etc", "repo/link")
    os.chmod("repo/deep/file", 0o640)
    open("/mine", "w").write("x")
    os.remove("/data/file") if os.path.exists("/data/file") else None
"""
SEE = """
    import os
    out = [sorted(os.listdir("repo")), os.stat("repo/deep/file").st_size, os.stat("repo/same").st_ino == os.stat("repo/deep/file").st_ino,
           os.readlink("repo/link"), oct(os.stat("repo/deep/file").st_mode), os.path.exists("/mine"), os.path.exists("/data/file"), os.getcwd()]
"""


@pytest.mark.parametrize("root", ["host", "image"])
def test_siblings_begin_with_what_the_warmed_box_has_written_and_go_their_own_ways(root, settings, tmp_path):  # noqa: F811
    async def scene():
        async with opened("bwrap", tmp_path / "scratch", **settings) as factory:
            warmed = await factory.start()
            assert (await probe(warmed, WARM)).outcome == "ok"
            before = await look(warmed, SEE)
            siblings = await asyncio.gather(*(factory.start(like=warmed) for _ in range(6)))
            assert [await look(box, SEE) for box in siblings] == [before] * 6
            await probe(siblings[0], "import shutil\nshutil.rmtree('repo')")
            assert await look(siblings[1], SEE) == await look(warmed, SEE) == before
            await warmed.close()
            assert await look(siblings[2], SEE) == before
            grandchild = await factory.start(like=siblings[3])
            assert await look(grandchild, SEE) == before
            assert await look(await factory.start(), "import os\nout = os.listdir('.')") == []

    asyncio.run(scene())
    assert os.listdir(tmp_path / "scratch") == []


def test_a_planted_link_leads_a_sibling_nowhere(tmp_path):
    """What the policy puts in the place of a folder that prorl needs is replaced, not followed."""
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)

    async def scene():
        async with opened("bwrap", tmp_path / "scratch", image=str(image)) as factory:
            warmed = await factory.start()
            code = "import os\nos.rmdir('/home/box')\nos.rmdir('/home')\nos.symlink('/var', '/home')"
            assert (await probe(warmed, code)).outcome == "ok"
            sibling = await factory.start(like=warmed)
            assert await look(sibling, "import os\nout = [os.getcwd(), os.path.islink('/home')]") == [
                "/home/box",
                False,
            ]

    asyncio.run(scene())


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
def test_where_boxes_keep_nothing_on_disk_the_caller_is_told(runtime, tmp_path):
    async def scene():
        async with opened(runtime, tmp_path) as factory:
            box = await factory.start()
            with pytest.raises(InfraError, match="keeps nothing on disk, or has ended"):
                await factory.start(like=box)
            assert (await (await factory.start()).call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())


def test_one_like_a_box_that_has_ended_is_refused(tmp_path):
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)

    async def scene():
        async with opened("bwrap", tmp_path / "scratch", image=str(image)) as factory:
            box = await factory.start()
            await box.close()
            with pytest.raises(InfraError, match="has ended"):
                await factory.start(like=box)

    asyncio.run(scene())


def test_one_like_a_box_that_ends_meanwhile_is_refused_and_not_an_empty_one(tmp_path):
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)

    async def scene():
        async with opened("bwrap", tmp_path / "scratch", image=str(image)) as factory:
            box, zygote = await factory.start(), zygote_of(box_processes())
            zygote.suspend()
            asked = asyncio.create_task(factory.start(like=box))
            await asyncio.sleep(0.05)
            zygote.kill()
            with pytest.raises(InfraError, match="parent process"):
                await asked

    asyncio.run(scene())


def test_a_copy_has_links_modes_times_and_whiteouts_and_no_socket(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_text("x")
    (source / "folder" / "same").hardlink_to(source / "folder" / "file")
    (source / "link").symlink_to("/nowhere")
    os.mkfifo(source / "pipe")
    os.mknod(source / "gone", stat.S_IFCHR, 0)
    os.utime(source / "folder" / "file", (1, 2))
    (source / "folder").chmod(0o711)
    clone(str(source), str(target))
    assert sorted(os.listdir(target)) == ["folder", "gone", "link", "pipe"]
    file = target / "folder" / "file"
    assert (file.read_text(), file.stat().st_mtime, file.stat().st_nlink) == ("x", 2, 2)
    assert stat.S_IMODE((target / "folder").stat().st_mode) == 0o711
    assert (target / "link").readlink() == Path("/nowhere")
    assert stat.S_ISCHR((target / "gone").stat().st_mode) and stat.S_ISFIFO((target / "pipe").stat().st_mode)


def test_a_folder_is_made_beside_what_stands_in_its_way(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "b").write_text("x")
    ensure_folder(str(tmp_path), "/a/c")
    ensure_folder(str(tmp_path), "/b/c")
    assert os.listdir(tmp_path / "elsewhere") == []
    assert (tmp_path / "a/c").is_dir() and (tmp_path / "b/c").is_dir()
