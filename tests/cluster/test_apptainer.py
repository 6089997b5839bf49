"""Boxes from a container image, packed and unpacked, in one container and in one each, launched by a user without rights;
what every runtime promises is asked of both ways in tests/test_sandbox_*.py as well."""

import asyncio
import os
import shutil
import socket
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from prorl_cli.errors import InfraError, UserError
from prorl_cli.sandbox.boxed.zygote import GATE
from prorl_cli.sandbox.janitor import clean
from tests.conftest import need
from tests.images import FORMS, apptainer_works, image
from tests.sandbox_kit import (
    EACH,
    at_work,
    box_processes,
    come_before_apptainer,
    first_process,
    look,
    one_box,
    opened,
    orphans_come_here,
    probe,
    settle,
    top_of,
    until,
    zygote_of,
)
from tests.test_sandbox_kill import worker as killed_worker

each_form = pytest.mark.parametrize("form", FORMS)
each_way = pytest.mark.parametrize("runtime", ("apptainer", EACH))
in_one = pytest.mark.parametrize("runtime", ("apptainer",))
one_each = pytest.mark.parametrize("runtime", (EACH,))
AT_ONCE = 20


@pytest.fixture(autouse=True)
def apptainer():
    need("apptainer", apptainer_works())


def boxes(runtime, form, scratch, **settings):
    return opened(runtime, scratch, image=str(image(form)), **settings)


def box_of(runtime, form, scratch, **settings):
    return one_box(runtime, scratch, image=str(image(form)), **settings)


@each_form
@each_way
def test_twenty_boxes_at_once_answer_from_the_image_that_records_name(runtime, form, tmp_path):
    async def episode(factory, number):
        box = await factory.start()
        answer = await box.call("calculator", {"expression": f"{number} / 4"}, 30)
        release = await look(box, "out = open('/etc/os-release').read()")
        await together.wait()
        await box.close()
        await box.close()
        return answer.output, "Debian" in release

    async def scene():
        async with boxes(runtime, form, tmp_path) as factory:
            assert (factory.runtime, factory.image) == ("apptainer", str(image(form)))
            return await asyncio.gather(*(episode(factory, 4 * number) for number in range(AT_ONCE)))

    together = asyncio.Barrier(AT_ONCE)
    assert asyncio.run(scene()) == [(str(number), True) for number in range(AT_ONCE)]
    assert settle() == []
    assert os.listdir(tmp_path) == []


@one_each
def test_only_a_few_boxes_are_on_their_way_at_once(runtime, tmp_path):
    async def watch(seen):
        while True:
            launchers = zygote_of(box_processes()).children()
            with suppress(psutil.NoSuchProcess):
                seen.add(sum(first_process(launcher) is None for launcher in launchers))
            await asyncio.sleep(0.005)

    async def scene():
        seen = set()
        async with boxes(runtime, "folder", tmp_path) as factory:
            watching = asyncio.create_task(watch(seen))
            await asyncio.gather(*(factory.start() for _ in range(AT_ONCE)))
            watching.cancel()
        return max(seen)

    assert 1 <= asyncio.run(scene()) <= GATE


@each_form
@each_way
def test_nothing_of_the_host_is_seen_or_reached(runtime, form, tmp_path, monkeypatch):
    secrets = ("PRORL_TEST_SECRET", "APPTAINERENV_LEAK", "SINGULARITYENV_LEAK", "https_proxy", "SLURM_LEAK", "PMI_LEAK")
    for name in (*secrets, "APPTAINER_BIND", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, f"hunter2{tmp_path}")
    (tmp_path / "note").write_text("x")
    with closing(socket.socket()) as tcp, closing(socket.socket(socket.AF_UNIX)) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(f"\0prorl-{os.getpid()}")
        abstract.listen()
        code = f"""
            import os, socket
            def reach(family, address):
                try:
                    socket.socket(family).connect(address)
                    return "reached"
                except OSError:
                    return "refused"
            out = dict(
                interfaces=[name for _, name in socket.if_nameindex()],
                reached=[
                    reach(socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
                    reach(socket.AF_INET, ("1.1.1.1", 53)),
                    reach(socket.AF_UNIX, "\\0prorl-{os.getpid()}"),
                ],
                host=socket.gethostname(),
                environment=dict(os.environ),
                started_with=open("/proc/self/environ").read().strip(chr(0)),
                command=open("/proc/self/cmdline").read(),
                paths=[path for path in {[str(Path.home()), str(tmp_path), "/work", "/sys/kernel"]!r} if os.path.exists(path)],
                written=[os.listdir(path) for path in ("/tmp", "/var/tmp", "/dev/shm", "/home")],
                processes=sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
                own=[os.getpid(), os.getppid()],
            )
        """

        async def scene():
            async with box_of(runtime, form, tmp_path / "scratch") as box:
                return await look(box, code)

        seen = asyncio.run(scene())
    assert seen["interfaces"] == ["lo"] and set(seen["reached"]) == {"refused"} and seen["host"] == "box"
    assert set(seen["environment"]) <= {"PATH", "LANG", "LC_CTYPE", "HOME", "TMPDIR"}
    assert "hunter2" not in str(seen) and seen["started_with"] == "" and str(tmp_path) not in seen["command"]
    assert (seen["paths"], seen["written"]) == ([], [[], [], [], ["box"]])
    assert seen["processes"] == [1, seen["own"][0]] and seen["own"][1] == 1


@each_way
def test_its_launcher_is_told_nothing_that_it_could_take_for_an_option(runtime, tmp_path, monkeypatch):
    for name in ("APPTAINER_BIND", "SINGULARITY_BINDPATH", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "no_proxy"):
        monkeypatch.setenv(name, "hunter2")
    told = tmp_path / "told"
    words = f"(env; pwd) > {told}.$$; mv {told}.$$ {told}"  # several boxes start at once
    come_before_apptainer(words, tmp_path, monkeypatch)

    async def scene():
        async with box_of(runtime, "folder", tmp_path / "scratch"):
            return dict(line.split("=", 1) for line in told.read_text().splitlines()[:-1])

    environment = asyncio.run(scene())
    own = {"HOME", "APPTAINER_CONFIGDIR", "APPTAINER_TMPDIR"}
    assert set(environment) <= own | {"PATH", "LANG", "PWD"}
    assert all(environment[name].startswith(f"{tmp_path}/scratch/boxes-") for name in own)
    assert told.read_text().splitlines()[-1] == environment["PWD"] == "/"


@one_each
def test_what_the_node_allows_is_tried_once_a_worker_not_once_a_zygote(runtime, tmp_path, monkeypatch):
    told = tmp_path / "told"
    come_before_apptainer(f'echo "$@" >> {told}', tmp_path, monkeypatch)

    async def scene():
        async with boxes(runtime, "folder", tmp_path / "scratch") as factory:
            zygote_of(box_processes()).kill()
            await until(lambda: factory._parent.lost)
            box = await factory.start()
            return (await box.call("calculator", {"expression": "6 * 7"}, 30)).output, factory.note

    output, note = asyncio.run(scene())
    assert output == "42" and note == "each has a container of its own: no overlay in a container: invented by a test"
    said = told.read_text()
    assert (said.count("--version"), said.count("prorl-was-here")) == (1, 1)
    assert settle() == []


@each_form
@each_way
def test_it_has_no_power_can_gain_none_and_cannot_harm_its_box(runtime, form, tmp_path):
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
            status["NoNewPrivs"],
            libc.unshare(0x10000000), libc.unshare(0x00020000), libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None),
            libc.umount2(b"/tmp", 2), libc.ptrace(16, 1, 0, 0), os.access("/proc/1/environ", os.R_OK),
            [writable(path) for path in ("/.prorl/prorl_cli/sandbox/boxed/x", "/.prorl/python/bin/x", "/.prorl/x", "/proc/sys/kernel/core_pattern")],
        ]
    """

    async def scene():
        async with box_of(runtime, form, tmp_path) as box:
            seen = await look(box, code)
            for blow in ("os.kill(1, 9)", "os.kill(1, 11)", "os.kill(1, 19)", "os.kill(-1, 9)"):
                await probe(box, f"import os\n{blow}")
            assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"
            return seen

    assert asyncio.run(scene()) == [[0] * 5, "1", -1, -1, -1, -1, -1, False, [False] * 4]


@each_form
@each_way
def test_what_a_box_writes_is_bounded_and_gone_with_it(runtime, form, tmp_path):
    fill = "with open({!r}, 'wb') as f:\n  for _ in range(100): f.write(bytes(2**20))"

    async def scene():
        async with boxes(runtime, form, tmp_path, memory="64MiB", disk="20MiB") as factory:
            box, other = await factory.start(), await factory.start()
            for path in ("/tmp/big", "/var/tmp/big", "/dev/shm/big"):
                full = await probe(box, fill.format(path))
                assert full.outcome == "error" and "No space left" in full.output, path
            slowly = fill.replace("100)", "400)") + "; time.sleep(0.01)"
            assert (await probe(box, "import time\n" + slowly.format("/big"))).outcome == "limit:disk"
            assert (await probe(box, "import os\nos.remove('/big')\nopen('/mine', 'w').write('x')")).outcome == "ok"
            assert await look(box, "import os\nout = os.path.exists('/mine')"), "it outlives the call"
            await box.close()
            for later in (other, await factory.start()):
                assert await look(later, "import os\nout = [os.path.exists('/mine'), os.listdir('/tmp')]") == [
                    False,
                    [],
                ]

    asyncio.run(scene())
    assert not (image("folder") / "mine").exists()


@each_form
@each_way
def test_siblings_begin_with_what_a_warmed_box_has_written(runtime, form, tmp_path):
    write = "import os\nos.mkdir('repo')\nopen('repo/file', 'w').write('x' * 100_000)\nopen('/mine', 'w').write('x')"
    read = "import os\nout = [os.getcwd(), os.listdir('.'), os.path.getsize('repo/file'), os.path.exists('/mine')]"

    async def scene():
        async with boxes(runtime, form, tmp_path) as factory:
            warmed = await factory.start()
            assert (await probe(warmed, write)).outcome == "ok"
            siblings = await asyncio.gather(*(factory.start(like=warmed) for _ in range(4)))
            await probe(warmed, "import os\nos.remove('repo/file')")
            return [await look(box, read) for box in siblings]

    assert asyncio.run(scene()) == [["/home/box", ["repo"], 100_000, True]] * 4
    assert settle() == [] and os.listdir(tmp_path) == []


@each_form
@in_one
def test_a_killed_launcher_costs_the_boxes_of_its_container_and_leaves_no_mount_behind(runtime, form, tmp_path):
    async def scene():
        async with boxes(runtime, form, tmp_path) as factory:
            call = asyncio.create_task(probe(await factory.start(), "import time; time.sleep(60)"))
            await at_work()
            launcher = top_of(box_processes())
            below = launcher.children(recursive=True)
            launcher.kill()
            with pytest.raises(InfraError, match="parent process"):
                await call
            assert (await (await factory.start()).call("calculator", {"expression": "1"}, 10)).output == "1"
            await until(lambda: not any(map(serves, below)))

    with orphans_come_here():
        asyncio.run(scene())
        assert settle() == []
    assert os.listdir(tmp_path) == []


@in_one
def test_a_mount_that_dies_under_a_container_costs_its_boxes_and_none_after_them(runtime, tmp_path):
    async def scene():
        async with boxes(runtime, "sif", tmp_path) as factory:
            call = asyncio.create_task(probe(await factory.start(), "import time; time.sleep(60)"))
            await at_work()
            for daemon in top_of(box_processes()).children():
                if "fuse" in daemon.name():
                    daemon.kill()
            with pytest.raises(InfraError, match="parent process"):
                await asyncio.wait_for(call, 10)
            assert await look(await factory.start(), "import os\nout = len(os.listdir('/usr/bin')) > 100")

    asyncio.run(scene())
    assert settle() == []


@in_one
def test_a_folder_that_is_tidied_away_under_a_container_costs_its_boxes_and_none_after_them(runtime, tmp_path):
    async def scene():
        async with boxes(runtime, "folder", tmp_path) as factory:
            await factory.start()
            [own] = tmp_path.glob("boxes-*")
            shutil.rmtree(own, ignore_errors=True)
            return (await (await factory.start()).call("calculator", {"expression": "6 * 7"}, 30)).output

    assert asyncio.run(scene()) == "42"
    assert settle() == []


@in_one
def test_a_container_that_fails_once_is_tried_again_before_each_box_gets_one(runtime, tmp_path, monkeypatch):
    busy = f'if [ "$1" = exec ] && mkdir {tmp_path}/busy 2>/dev/null; then echo "FATAL:   busy" >&2; exit 255; fi'
    come_before_apptainer(busy, tmp_path, monkeypatch)

    async def scene():
        async with boxes(runtime, "folder", tmp_path / "scratch") as factory:
            return factory.note

    assert asyncio.run(scene()) == "" and (tmp_path / "busy").exists()


@each_form
@one_each
def test_a_launcher_killed_by_force_is_an_error_of_the_machine_and_leaves_no_mount_behind(runtime, form, tmp_path):
    async def scene():
        async with boxes(runtime, form, tmp_path) as factory:
            box = await factory.start()
            call = asyncio.create_task(probe(box, "import time; time.sleep(60)"))
            launcher = (await at_work()).parent()
            below = launcher.children(recursive=True)
            launcher.kill()
            with pytest.raises(InfraError, match="killed by SIGKILL from outside"):
                await call
            await until(lambda: not any(process.is_running() for process in below))
            assert (await (await factory.start()).call("calculator", {"expression": "1"}, 10)).output == "1"

    asyncio.run(scene())
    assert settle() == []


@each_way
def test_a_killed_worker_leaves_no_process_mount_or_folder_of_a_packed_image(runtime, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.sandbox_kit.image", lambda: image("sif"))
    with orphans_come_here():
        pid = killed_worker(runtime, tmp_path)
        daemons = sum(process.name() == "squashfuse_ll" for process in box_processes(pid))
        assert daemons >= 2 if runtime == EACH else daemons in (1, 2), "one mounts the root, one the image"
        psutil.Process(pid).kill()
        os.waitpid(pid, 0)
        assert settle() == []
    assert os.listdir(tmp_path) == []


def serves(process):
    """Whether it lives; whoever inherited it may take a while to notice that it does not."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def mounts(zygote):
    """What serves the images of its boxes, two processes each."""
    for launcher in zygote.children():
        with suppress(psutil.NoSuchProcess):
            yield from (process for process in launcher.children() if "fuse" in process.name())


@in_one
def test_mounts_of_a_container_that_went_with_its_launcher_end_at_the_next_start_and_no_others(runtime, tmp_path):
    async def scene():
        living, killed = tmp_path / "living", tmp_path / "killed"
        async with boxes(runtime, "sif", living) as factory, boxes(runtime, "sif", killed) as other:
            box, _ = await factory.start(), await other.start()
            launcher = psutil.Process(other._parent._process.pid)
            zygote = next(child for child in launcher.children() if "fuse" not in child.name())
            daemons = [child for child in launcher.children() if "fuse" in child.name()]
            assert daemons
            for process in (launcher, zygote):
                process.suspend()  # so that they tidy nothing
            for process in (launcher, zygote):
                process.kill()
            clean(living)
            await until(lambda: not any(map(serves, daemons)))
            assert (await probe(box, "import os\nout = len(os.listdir('/usr/bin')) > 100")).output == "True"

    asyncio.run(scene())
    assert settle() == []


@one_each
def test_mounts_whose_launcher_went_with_its_zygote_end_at_the_next_start_and_no_others(runtime, tmp_path):
    async def scene():
        living, gone = tmp_path / "living", tmp_path / "killed"
        async with boxes(runtime, "sif", living) as factory, boxes(runtime, "sif", gone) as killed:
            box, _ = await factory.start(), await killed.start()
            zygote = psutil.Process(killed._parent._process.pid)
            up = partial(filter, first_process)
            await until(lambda: len(list(up(zygote.children()))) == 3, within_s=30)  # with two spare ones
            await until(lambda: len(list(mounts(zygote))) == 6)  # those of a box that noticed its end may be gone below
            launchers, daemons = zygote.children(), list(mounts(zygote))
            zygote.suspend()  # so that it tidies nothing
            for process in (*launchers, zygote):
                process.kill()
            clean(tmp_path / "killed")
            clean(tmp_path / "living")
            await until(lambda: not any(map(serves, daemons)))
            assert (await probe(box, "import os\nout = len(os.listdir('/usr/bin')) > 100")).output == "True"

    asyncio.run(scene())
    assert settle() == []


@each_form
@each_way
def test_long_and_odd_paths_do_no_harm(runtime, form, tmp_path):
    folder = tmp_path.joinpath(*[f"a, 'b' \"{number}\" $(id):{'x' * 60}" for number in range(4)])
    assert len(str(folder)) > 250
    folder.mkdir(parents=True)
    linked = folder / image(form).name
    linked.symlink_to(image(form))

    async def scene():
        async with opened(runtime, folder / "scratch", image=str(linked)) as factory:
            answer = await (await factory.start()).call("calculator", {"expression": "6 * 7"}, 10)
            return answer.output, factory.note

    output, note = asyncio.run(scene())
    assert output == "42" and ("they write to memory: their folder has a name" in note) == (runtime == EACH)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("missing", "sandbox.image: there is no"),
        ("text", "text can be started: FATAL"),
        ("empty", "empty can be started"),
    ],
)
def test_an_image_that_is_none_is_the_users_mistake_and_leaves_nothing(what, words, tmp_path):
    bad, scratch = tmp_path / what, tmp_path / "scratch"
    if what == "text":
        bad.write_text("not an image")
    elif what == "empty":
        bad.mkdir()

    async def scene():
        with pytest.raises(UserError, match=words):
            async with opened("apptainer", scratch, image=str(bad)):
                raise AssertionError("it was opened")

    asyncio.run(scene())
    assert settle() == []
    assert not scratch.exists() or os.listdir(scratch) == []


@each_way
def test_singularity_will_do_where_there_is_no_apptainer(runtime, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "singularity").symlink_to(shutil.which("apptainer"))
    (programs / "ldd").symlink_to(shutil.which("ldd"))
    monkeypatch.setenv("PATH", str(programs))

    async def scene():
        async with box_of(runtime, "folder", tmp_path / "scratch") as box:
            return await box.call("calculator", {"expression": "6 * 7"}, 10)

    image("folder")
    assert asyncio.run(scene()).output == "42"


def test_without_either_the_user_is_told(tmp_path, monkeypatch):
    path = str(image("folder"))
    monkeypatch.setenv("PATH", str(tmp_path))

    async def scene():
        with pytest.raises(UserError, match="neither apptainer nor singularity is installed"):
            async with opened("apptainer", tmp_path / "scratch", image=path):
                raise AssertionError("it was opened")

    monkeypatch.setattr("tests.sandbox_kit.need_runtime", lambda runtime: None)
    asyncio.run(scene())
