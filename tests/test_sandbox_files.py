"""What the worker puts into a box and gets out of it is what it says, and nothing planted in between is followed."""

import asyncio
import os
import random

import pytest

from prorl_cli.agent.toolbox import tool_named
from prorl_cli.errors import UserError
from prorl_cli.sandbox import FileRefused, transfer
from prorl_cli.sandbox.boxed.tools import OnDemand
from tests.sandbox_kit import RUNTIMES, look, one_box, probe

each_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


def scene(runtime, scratch, acts, **settings):
    async def whole():
        async with one_box(runtime, scratch, **settings) as box:
            await acts(box)

    asyncio.run(whole())


def put(box, path, data, mode=0o644):
    return transfer.put(box.call, {path: data}, mode)


async def refused(doing):
    with pytest.raises(FileRefused) as caught:
        await doing
    return str(caught.value)


@each_runtime
def test_files_come_back_as_they_went_in_and_tools_see_them(runtime, tmp_path):
    async def acts(box):
        for data in (b"", b"one\r\n\0\xff", random.Random(1).randbytes(transfer.GET_PIECE)):
            await put(box, "deep/er/a b,c:d\n", data, 0o751)
            assert await box.get("deep/er/a b,c:d\n") == data
        seen = "import os; out = [oct(os.stat(os.path.expanduser('~/deep/er/a b,c:d\\n')).st_mode), os.listdir(os.path.expanduser('~/deep/er'))]"
        assert await look(box, seen) == ["0o100751", ["a b,c:d\n"]]
        home = await look(box, "import os; out = os.environ['HOME']")
        assert await box.get(f"{home}/deep/er/a b,c:d\n") == data

    scene(runtime, tmp_path, acts)


@each_runtime
def test_megabytes_go_in_pieces_and_arrive_whole(runtime, tmp_path):
    data = random.Random(2).randbytes(2 * transfer.PUT_PIECE + 17)

    async def acts(box):
        await put(box, "large", data)
        assert await box.get("large") == data
        assert "at most 1000" in await refused(box.get("large", limit=1000))

    scene(runtime, tmp_path, acts)


@each_runtime
def test_a_folder_goes_in_by_names_and_nothing_else_is_in_it(runtime, tmp_path):
    files = {f"d{number % 7}/f{number}": bytes([number]) * number for number in range(60)} | {"é\udcff": b"x"}

    async def acts(box):
        await box.put_all("tree", files)
        assert {name: await box.get(f"tree/{name}") for name in files} == files
        listed = "out = sum(len(names) for _, _, names in os.walk(os.path.expanduser('~/tree')))"
        assert await look(box, f"import os\n{listed}") == len(files)

    scene(runtime, tmp_path, acts)


PLANTED = {
    "link": ("os.symlink(outside, 'link')", "is a symbolic link"),
    "dir/file": ("os.symlink(os.path.dirname(outside), 'dir')", "is a symbolic link"),
    "a/b/c/file": ("os.makedirs('a/b'); os.symlink(os.path.dirname(outside), 'a/b/c')", "is a symbolic link"),
    "pipe": ("os.mkfifo('pipe')", "is a named pipe"),
    "socket": ("import socket; socket.socket(socket.AF_UNIX).bind('socket')", "is a socket"),
    "folder": ("os.mkdir('folder')", "is a folder"),
    "file/inner": ("open('file', 'w')", "is a file, not a folder"),
}


@each_runtime
def test_what_the_policy_plants_is_told_and_never_followed(runtime, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the host's")

    async def acts(box):
        for path, (plant, words) in PLANTED.items():
            begin = f"import os\nos.chdir(os.environ['HOME'])\noutside = {str(outside / 'file')!r}\n"
            assert (await probe(box, begin + plant)).outcome == "ok"
            assert words in await refused(box.get(path)), path
            assert words in await refused(put(box, path, b"planted")), path
        for path in ("link", "dir", "a/b/c"):
            assert "symbolic link" in await refused(box.put_all(path, {"x": b"planted"}))
        assert "is a device" in await refused(box.get("/dev/zero"))
        assert "is a device" in await refused(put(box, "/dev/null", b""))

    scene(runtime, tmp_path / "scratch", acts)
    assert (outside / "file").read_text() == "the host's" and os.listdir(outside) == ["file"]


def test_a_hard_link_to_another_file_is_not_read_and_not_written_through(tmp_path):
    (tmp_path / "secret").write_text("the host's")

    async def acts(box):
        await probe(box, f"import os; os.link({str(tmp_path / 'secret')!r}, os.path.expanduser('~/hard'))")
        assert "2 names" in await refused(box.get("hard"))
        await put(box, "hard", b"new")
        assert await box.get("hard") == b"new"

    scene("process", tmp_path / "scratch", acts)
    assert (tmp_path / "secret").read_text() == "the host's"


@each_runtime
def test_paths_that_name_no_file_are_refused_in_words(runtime, tmp_path):
    async def acts(box):
        for path in ("", "/", ".", "..", "../x", "a/../b", "/tmp/../etc/passwd", "a\0b"):
            assert "names no file" in await refused(box.get(path))
            assert "names no file" in await refused(put(box, path, b""))
        assert "No such file" in await refused(box.get("missing"))
        assert "No such file" in await refused(box.get("no/such/folder"))
        assert "too long" in await refused(put(box, "n" * 300, b""))

    scene(runtime, tmp_path, acts)


@each_runtime
def test_a_policy_that_changes_a_file_while_it_is_read_is_told_apart(runtime, tmp_path):
    async def acts(box):
        await put(box, "f", b"x" * (3 * transfer.GET_PIECE))
        ask = box.call

        async def meddling(tool, arguments, timeout_s):
            result = await ask(tool, arguments, timeout_s)
            await probe(box, "import os; open(os.path.expanduser('~/f'), 'a').write('more')")
            return result

        assert "changes while it is read" in await refused(transfer.get(meddling, "f", 2**20))

    scene(runtime, tmp_path, acts)


@each_runtime
def test_nothing_is_left_of_a_file_that_did_not_fit(runtime, tmp_path):
    async def acts(box):
        await put(box, "f", b"old")
        await probe(box, "import os; os.chmod(os.environ['HOME'], 0o500)")
        if (await probe(box, "import os; out = os.access(os.environ['HOME'], os.W_OK)")).output == "False":
            assert "denied" in await refused(put(box, "f", b"new"))
        await probe(box, "import os; os.chmod(os.environ['HOME'], 0o700)")
        assert await box.get("f") in (b"old", b"new")
        assert [
            name for name in await look(box, "import os; out = os.listdir(os.environ['HOME'])") if ".prorl-" in name
        ] == []

    scene(runtime, tmp_path, acts)


def test_the_workers_own_tools_are_no_tools_of_the_policys(tmp_path):
    own = [name for name in OnDemand((), ()).paths if name.startswith("_")]
    assert "_put" in own
    for name in own:
        with pytest.raises(UserError, match="no tool"):
            tool_named(name)
