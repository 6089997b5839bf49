"""From inside a walled box nothing is seen, reached or changed but the box: asked of a real one, by its own eyes.

The same questions are put again by a worker of another user, so that root and ordinary users are both proven.
"""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.sandbox_kit import first_processes, look, need_runtime, one_box, opened, probe, until

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def ask(tmp_path, code):
    async def scene():
        async with one_box("bwrap", tmp_path) as box:
            return await look(box, code)

    return asyncio.run(scene())


def test_only_its_own_processes_are_seen_and_reached(tmp_path):
    async def scene():
        async with opened("bwrap", tmp_path) as factory:
            one, other = await factory.start(), await factory.start()
            busy = asyncio.create_task(probe(other, "import time; time.sleep(60)"))
            seen = await look(one, "import os\nout = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
            own = await look(one, "import os\nout = [os.getpid(), os.getppid()]")
            hit = await probe(one, "import os\nfor pid in range(2, 5000):\n  try:\n    pid != os.getpid() and os.kill(pid, 9)\n  except ProcessLookupError: pass")  # fmt: skip
            assert seen[0] == 1 and len(seen) == 2, seen
            assert own[1] == 1
            assert hit.outcome == "ok"
            assert not busy.done(), "the other box's tool lives"
            await other.close()
            with pytest.raises(Exception, match="closed"):
                await busy

    asyncio.run(scene())


def test_no_file_of_another_box_or_of_an_earlier_one_is_seen(tmp_path):
    async def scene():
        async with opened("bwrap", tmp_path) as factory:
            one, other = await factory.start(), await factory.start()
            assert (await probe(one, "open('/tmp/mine', 'w').write('x' * 1000)")).outcome == "ok"
            assert await look(one, "import os\nout = os.listdir('/tmp')") == ["mine"], "it outlives the call"
            assert await look(other, "import os\nout = os.listdir('/tmp')") == []
            await one.close()
            assert await look(await factory.start(), "import os\nout = os.listdir('/tmp')") == []

    asyncio.run(scene())
    assert os.listdir(tmp_path) == []


def test_there_is_no_network_and_no_socket_of_the_host(tmp_path):
    with closing(socket.socket()) as tcp, closing(socket.socket(socket.AF_UNIX)) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(f"\0prorl-{os.getpid()}")
        abstract.listen()
        code = f"""
            import socket
            def reach(family, address):
                try:
                    socket.socket(family).connect(address)
                    return "reached"
                except OSError as error:
                    return "refused"
            out = [
                [name for _, name in socket.if_nameindex()],
                reach(socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
                reach(socket.AF_INET, ("1.1.1.1", 53)),
                reach(socket.AF_UNIX, "\\0prorl-{os.getpid()}"),
                socket.gethostname(),
            ]
        """
        assert ask(tmp_path, code) == [["lo"], "refused", "refused", "refused", "box"]


def test_the_hosts_home_and_environment_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PRORL_TEST_SECRET", "hunter2")
    code = """
        import os
        out = [dict(os.environ), open("/proc/self/environ").read(), sorted(os.listdir("/")),
               [os.path.exists(p) for p in ("/home", "/root", "/etc", "/usr", "/var", "/sys")],
               open("/proc/self/cmdline").read()]
    """
    environment, started_with, root, exist, command = ask(tmp_path, code)
    assert set(environment) <= {"PATH", "LANG", "HOME", "PWD", "LC_CTYPE"}
    assert environment["HOME"] == "/tmp"
    assert "hunter2" not in started_with + command
    assert set(root) <= {".prorl", "dev", "lib", "lib64", "proc", "tmp"}
    assert not any(exist)
    assert str(Path.home()) not in started_with + command
    assert str(tmp_path) not in started_with + command


def test_the_root_is_read_only_and_small(tmp_path):
    code = """
        import os
        def write(path):
            try:
                open(path, "w")
                return "written"
            except OSError as error:
                return "refused"
        out = {path: write(path) for path in
            ("/x", "/.prorl/x", "/.prorl/python/x", "/.prorl/prorl_cli/x", "/.prorl/prorl_cli/sandbox/boxed/x", "/dev/x",
             "/.prorl/tools/0/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/1/oom_score_adj",
             "/.prorl/python/bin/x")}
        out["/tmp/x"] = write("/tmp/x")
        out["third party"] = [f for d, _, fs in os.walk("/.prorl/python") if "site-packages" in d for f in fs]
    """
    seen = ask(tmp_path, code)
    assert seen.pop("/tmp/x") == "written"
    assert seen.pop("third party") == []
    assert set(seen.values()) == {"refused"}


def test_it_has_no_power_and_can_gain_none(tmp_path):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        out = [
            [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
            status["NoNewPrivs"],
            os.getuid(), os.getgid(),
            libc.unshare(0x10000000), libc.unshare(0x00020000),
            libc.mount(b"tmpfs", b"/.prorl/python", b"tmpfs", 0, None),
            libc.umount2(b"/proc", 2), libc.umount2(b"/tmp", 2),
            libc.ptrace(16, 1, 0, 0),
            os.path.exists("/proc/1/environ") and os.access("/proc/1/environ", os.R_OK),
            open("/proc/self/uid_map").read().split()[2],
        ]
    """
    seen = ask(tmp_path, code)
    assert seen == [[0] * 5, "1", 1000, 1000, -1, -1, -1, -1, -1, -1, False, "1"]


def test_files_in_a_box_are_bounded_by_its_memory(tmp_path):
    async def scene():
        async with one_box("bwrap", tmp_path, memory="64MiB") as box:
            full = await probe(box, "f = open('/tmp/big', 'wb')\nfor _ in range(100): f.write(bytes(2**20))")
            assert full.outcome == "error" and "No space left" in full.output

    asyncio.run(scene())


def test_even_a_root_worker_makes_boxes_that_are_nobody(tmp_path):
    if os.geteuid():
        pytest.skip("needs root: run the tests as root as well")
    need_runtime("bwrap")

    async def scene():
        async with one_box("bwrap", tmp_path):
            await until(lambda: {first.uids().effective for first in first_processes()} == {65534})

    asyncio.run(scene())


def test_a_plain_box_has_a_clean_environment_and_its_own_folder_and_session(tmp_path, monkeypatch):
    monkeypatch.setenv("PRORL_TEST_SECRET", "hunter2")
    code = """
        import os
        open("note", "w").write("x")
        out = [dict(os.environ), open("/proc/self/environ").read(), os.getcwd(), os.stat(".").st_mode & 0o777,
               os.getsid(0) == os.getpid(), sorted(os.listdir("/proc/self/fd"))]
    """

    async def scene():
        async with opened("process", tmp_path) as factory:
            seen = [await look(await factory.start(), code) for _ in range(2)]
            assert "hunter2" not in str(seen)
            for environment, _, folder, mode, leads, files in seen:
                assert environment["HOME"] == environment["TMPDIR"] == folder
                assert Path(folder).is_relative_to(tmp_path) and mode == 0o700 and leads
                assert files[:4] == ["0", "1", "2", "3"] and len(files) <= 5  # 4 lists the folder
            assert seen[0][2] != seen[1][2]

    asyncio.run(scene())
    assert os.listdir(tmp_path) == []


def other_python():
    """An interpreter of the same version that any user may run, with this one's packages; and their folders."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (os.path.realpath(sys.executable), shutil.which(version, path="/usr/bin:/usr/local/bin")):
        check = [*NOBODY, candidate or "", "-c", "import os, sys; os.stat(sys.executable)"]
        if candidate and subprocess.run(check, capture_output=True).returncode == 0:
            return candidate, [path for path in sys.path if path.endswith("site-packages")]
    return None


def test_an_ordinary_user_gets_the_same_walls(tmp_path):
    need_runtime("bwrap")
    if os.geteuid():
        pytest.skip("this is an ordinary user: all of this file was asked as one")
    found = other_python() if shutil.which("setpriv") else None
    if not found:
        pytest.skip("needs setpriv (util-linux) and an interpreter of this version outside of root's home")
    python, packages = found
    repository = Path(__file__).parent.parent
    environment = {"PYTHONPATH": ":".join([str(repository), *packages]), "PATH": os.environ["PATH"], "TMPDIR": "/tmp"}
    names = ["processes_are_seen", "no_file_of_another", "no_network", "home_and_environment", "read_only", "no_power"]
    command = [
        *NOBODY, python, "-P", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", " or ".join(names),
        f"--rootdir={repository}", __file__,
    ]  # fmt: skip
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert f"{len(names)} passed" in result.stdout, result.stdout + result.stderr


def in_user_namespace(prepare, runtime, scratch):
    """What a worker says that runs as root of a user namespace of its own, as in a rootless container."""
    need_runtime("bwrap")
    code = (
        "import asyncio, pathlib, sys\n"
        "from prorl_cli.recipe import Sandbox\n"
        "from prorl_cli.sandbox import open_boxes\n"
        "async def main():\n"
        "    factory = await open_boxes(Sandbox(runtime=sys.argv[1]), scratch=pathlib.Path(sys.argv[2]))\n"
        "    print(factory.runtime, (await (await factory.start()).call('calculator', {'expression': '6*7'}, 30)).output)\n"
        "    await factory.close()\n"
        "asyncio.run(main())\n"
    )
    script = f'{prepare} && exec "$@"'
    worker = [sys.executable, "-c", code, runtime, str(scratch)]
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *worker]
    result = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=60)
    return result.stdout.split(), result.stderr


def test_the_root_of_a_rootless_container_gets_walls_too(tmp_path):
    assert in_user_namespace("true", "bwrap", tmp_path) == (["bwrap", "42"], "")


@pytest.mark.parametrize("namespaces", [0, 1])
def test_where_the_kernel_refuses_walls_auto_goes_without_and_says_why(namespaces, tmp_path):
    """None is left for bwrap itself, or one for bwrap and none for the box."""
    prepare = f"echo {namespaces} > /proc/sys/user/max_user_namespaces"
    answer, words = in_user_namespace(prepare, "auto", tmp_path)
    assert answer == ["process", "42"]
    assert "bwrap does not work on this machine" in words
    assert os.listdir(tmp_path) == []
