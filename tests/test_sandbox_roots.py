"""Roots of a box's own below bwrap: an image's folder or the host's programs, what is written there, and where it goes."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_cli.errors import UserError
from prorl_cli.sandbox import hostroot, runtimes
from tests.killing import wait
from tests.sandbox_kit import (
    box_processes,
    look,
    need_runtime,
    one_box,
    opened,
    orphans_come_here,
    probe,
    settle,
    top_of,
)
from tests.test_sandbox_kill import worker

each_root = pytest.mark.parametrize("root", ["host", "image"])


@pytest.fixture
def settings(root, tmp_path, monkeypatch):
    """Of boxes with such a root: the image is a folder that holds next to nothing, which is enough."""
    if root == "host":
        monkeypatch.setattr(runtimes, "ANYTHING", runtimes.ANYTHING | {"calculator"})
        return {}
    image = tmp_path / "an image, with a comma"
    for folder in ("bin", "etc", "home", "data"):
        (image / folder).mkdir(parents=True)
    (image / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (image / "data" / "file").write_text("of the image")
    if os.geteuid() == 0:  # boxes are nobody then, and an image is its owner's to change
        for path in (image, *image.rglob("*")):
            os.chown(path, 65534, 65534)
    return {"image": str(image)}


def ask(settings, scratch, code):
    async def scene():
        async with one_box("bwrap", scratch, **settings) as box:
            return await look(box, code)

    return asyncio.run(scene())


@pytest.mark.parametrize("root", ["image"])
def test_a_pipe_in_the_place_of_the_images_users_keeps_nobody_waiting(root, settings, tmp_path):
    users = Path(settings["image"], "etc", "passwd")
    users.unlink()
    os.mkfifo(users)
    assert ask(settings, tmp_path / "scratch", "import os\nout = os.getuid()") == 1000


@each_root
def test_a_box_has_a_home_its_own_devices_and_nothing_of_the_hosts_data(root, settings, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    code = f"""
        import os, pwd
        master, slave = os.openpty()
        os.write(slave, b"echo")
        out = dict(
            home=[os.getcwd(), os.environ["HOME"], os.listdir("."), pwd.getpwuid(os.getuid()).pw_name],
            terminal=[os.ttyname(slave), os.read(master, 4).decode()],
            devices=sorted(os.listdir("/dev")),
            there=[path for path in {[str(secret), str(Path.home()), "/root", "/etc/shadow", "/node", "/scratch", "/.old", "/image"]!r} if os.path.exists(path)],
            mounted=[line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4].startswith(("/node", "/scratch", "/.old", "/host"))],
            own=[os.getpid(), os.getppid()],
        )
    """
    seen = ask(settings, tmp_path / "scratch", code)
    assert seen["home"] == ["/home/box", "/home/box", [], "box"]
    assert seen["terminal"] == ["/dev/pts/0", "echo"]
    assert {"null", "full", "urandom", "ptmx", "pts", "shm", "fd", "stdin", "tty"} <= set(seen["devices"])
    assert (seen["there"], seen["mounted"], seen["own"][1]) == ([], [], 1)


@each_root
def test_what_a_box_writes_is_its_own_and_gone_with_it(root, settings, tmp_path):
    write = """
        import os
        open("/mine", "w").write("x")
        open("mine", "w").write("x")
        os.makedirs("closed/closed")
        os.chmod("closed/closed", 0)
        os.chmod("closed", 0)
        os.remove("/data/file") if os.path.exists("/data/file") else None
    """
    read = "import os\nout = [os.path.exists(p) for p in ('/mine', 'mine', '/data/file')]"

    async def scene():
        async with opened("bwrap", tmp_path / "scratch", **settings) as factory:
            box, other = await factory.start(), await factory.start()
            assert (await probe(box, write)).outcome == "ok"
            assert (await look(box, read))[:2] == [True, True], "it outlives the call"
            await box.close()
            for later in (other, await factory.start()):
                assert await look(later, read) == [False, False, root == "image"]

    asyncio.run(scene())
    assert os.listdir(tmp_path / "scratch") == []
    if root == "image":
        assert Path(settings["image"], "data/file").read_text() == "of the image"
        assert sorted(os.listdir(settings["image"])) == ["bin", "data", "etc", "home"]


@each_root
def test_what_it_writes_to_disk_is_bounded(root, settings, tmp_path):
    fill = "import time\nf = open('big', 'wb')\nfor _ in range(400):\n  f.write(bytes(2**20))\n  time.sleep(0.01)"

    async def scene():
        async with one_box("bwrap", tmp_path / "scratch", disk="20MiB", **settings) as box:
            assert (await probe(box, fill)).outcome == "limit:disk"
            tidy = await probe(box, "import os, time\ntime.sleep(0.6)\nos.remove('big')")
            assert tidy.outcome == "ok", "the next call is not to blame"
            for folder in ("/tmp", "/var/tmp", "/dev/shm"):
                full = await probe(box, f"f = open('{folder}/big', 'wb')\nfor _ in range(300): f.write(bytes(2**20))")
                assert "No space left" in full.output or full.outcome == "limit:memory", full

    asyncio.run(scene())


@each_root
def test_it_has_no_power_and_can_gain_none(root, settings, tmp_path):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        def writable(path):
            try:
                open(path, "w")
                return True
            except OSError:
                return False
        out = [
            [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
            status["NoNewPrivs"], os.getuid(), os.getgid(),
            libc.unshare(0x10000000), libc.unshare(0x00020000), libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None),
            libc.umount2(b"/usr", 2), libc.umount2(b"/.prorl", 2), libc.ptrace(16, 1, 0, 0), os.access("/proc/1/environ", os.R_OK),
            [writable(path) for path in ("/.prorl/x", "/.prorl/prorl_cli/sandbox/boxed/x", "/.prorl/python/bin/x", "/dev/x", "/usr/bin/x", "/proc/sys/kernel/core_pattern")],
        ]
    """
    seen = ask(settings, tmp_path / "scratch", code)
    assert seen == [[0] * 5, "1", 1000, 1000, -1, -1, -1, -1, -1, -1, False, [False] * 6]


def test_the_hosts_programs_run_and_its_etc_holds_nothing_of_the_site(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "ANYTHING", runtimes.ANYTHING | {"calculator"})
    code = """
        import os, subprocess
        run = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip()
        out = [run("sh", "-c", "echo $((6 * 7)); id -un"), sorted(os.listdir("/etc")), open("/etc/passwd").read()]
    """
    said, etc, users = ask({}, tmp_path / "scratch", code)
    assert said == "42\nbox"
    assert set(etc) <= {
        *hostroot.WRITTEN,
        *(name.split("/")[0] for name in hostroot.COPIED),
        "os-release",
        "alternatives",
    }
    assert users == hostroot.WRITTEN["passwd"]


@each_root
def test_a_killed_worker_leaves_no_process_and_no_folder(root, settings, tmp_path, monkeypatch):
    need_runtime("bwrap")
    scratch = tmp_path / "scratch"
    monkeypatch.setattr("tests.test_sandbox_kill.sandbox", _with(settings))
    with orphans_come_here():
        pid = worker("bwrap", scratch)
        assert len(os.listdir(scratch)) == 1 and len(os.listdir(next(scratch.iterdir()))) >= 2
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        assert settle() == []
    assert os.listdir(scratch) == []


def _with(settings):
    from tests.sandbox_kit import sandbox

    return lambda runtime: sandbox(runtime, **settings)


def test_a_stopped_zygote_is_taken_down_with_all_it_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "ANYTHING", runtimes.ANYTHING | {"calculator"})
    monkeypatch.setattr("prorl_cli.sandbox.parent.LEAVE_S", 0.5)

    async def scene():
        async with opened("bwrap", tmp_path) as factory:
            await factory.start()
            for process in top_of(box_processes()).children():
                process.suspend()

    with orphans_come_here():
        asyncio.run(scene())
        assert settle() == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("what", "words"), [("file", "takes an unpacked image"), ("nothing", "no unpacked image")])
def test_an_image_that_is_none_is_the_users_mistake(what, words, tmp_path):
    need_runtime("bwrap")
    image = tmp_path / what
    if what == "file":
        image.write_text("x")

    async def scene():
        with pytest.raises(UserError, match=f"sandbox.image.*{words}"):
            async with opened("bwrap", tmp_path / "scratch", image=str(image)):
                raise AssertionError("it was opened")

    asyncio.run(scene())
    assert os.listdir(tmp_path / "scratch") == []


IN_MEMORY = """
import asyncio, logging, os, pathlib, sys
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import open_boxes
from tests.sandbox_kit import PROBE, look
logging.basicConfig()
async def main():
    scratch, image = map(pathlib.Path, sys.argv[1:])
    factory = await open_boxes(Sandbox(runtime="bwrap", image=str(image)), scratch=scratch, tools=[PROBE])
    box = await factory.start()
    code = "import os\\nout = [open('/data/file').read(), os.getcwd(), open('x', 'w').write('1'), open('/tmp/x', 'w').write('1'), os.access('/data/file', os.W_OK)]"
    print(await look(box, code))
    await factory.close()
    print(os.listdir(scratch))
asyncio.run(main())
"""


@pytest.mark.parametrize("root", ["image"])
def test_where_the_disk_refuses_an_overlay_boxes_write_to_memory_and_the_log_says_so(root, settings, tmp_path):
    """The scratch folder is an overlay itself, which the kernel refuses to write another one to."""
    need_runtime("bwrap")
    for name in ("a", "b", "c", "scratch"):
        (tmp_path / name).mkdir()
    prepare = (
        f"mount -t overlay overlay -o lowerdir={tmp_path}/a,upperdir={tmp_path}/b,workdir={tmp_path}/c,userxattr "
        f'{tmp_path}/scratch && exec "$@"'
    )
    run = [sys.executable, "-c", IN_MEMORY, str(tmp_path / "scratch"), settings["image"]]
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", prepare, "sh", *run]
    result = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines() == ["['of the image', '/home/box', 1, 1, False]", "[]"], result.stderr
    assert "no overlay (" in result.stderr and "boxes can write only to memory" in result.stderr
