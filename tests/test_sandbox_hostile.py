"""What broke other people's sandboxes, done in real boxes on every runtime that promises to stand it; `sandbox_bugs`
says which bug is which.
"""

import asyncio
import os
import resource
import socket
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from prorl_cli.errors import InfraError
from tests.hostile_kit import box_of, boxes_of, on, out, run, scratch
from tests.images import image
from tests.sandbox_bugs import EVERY, WALLED
from tests.sandbox_kit import box_processes, come_before_apptainer, look, need_runtime, probe, until, zygote_of

__all__ = ["scratch"]


async def answers(box, patience_s=20.0):
    """Whether its shell works again: who was too many is ended by and by."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if (await run(box, "echo alive", 10)).output.startswith("alive"):
            return True
    return False


async def walled_in(box, host):
    """Asked before blows that would be felt by this machine if there were no walls."""
    (host / "marker").write_text("x")
    code = f"import os\nout = [os.path.exists({str(host / 'marker')!r}), len([p for p in os.listdir('/proc') if p.isdigit()])]"
    visible, processes = await look(box, code)
    assert not visible and processes < 10
    return True


# --- what eats a node


@on(*WALLED)
def test_a_fork_bomb_costs_its_own_command_alone(runtime, tmp_path, scratch):
    async def scene():
        async with boxes_of(runtime, scratch, processes=40) as factory:
            box, other = await factory.start(), await factory.start()
            assert await walled_in(box, tmp_path)
            bomb = asyncio.create_task(run(box, "bomb() { bomb | bomb & }; bomb; sleep 60", 3))
            assert await out(other, "echo undisturbed") == "undisturbed\n"
            assert (await bomb).outcome in ("timeout", "limit:processes")
            assert await answers(box)

    asyncio.run(scene())


@on(*EVERY)
def test_a_disk_bomb_is_ended_and_what_it_wrote_can_be_removed(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch, disk="64MiB", memory="128MiB") as box:
            full = await run(
                box, "for n in 1 2 3 4 5 6 7 8; do head -c 100M /dev/zero > big$n || exit; sleep 0.1; done"
            )
            assert full.outcome == "limit:disk" or "No space left" in full.output, full
            assert await out(box, "rm big*; head -c 1M /dev/zero > small; wc -c < small") == "1048576\n"

    asyncio.run(scene())


@on(*WALLED)
@pytest.mark.parametrize("place", ["/tmp", "/var/tmp", "/dev/shm"])
def test_files_in_memory_are_bounded(runtime, place, scratch):
    async def scene():
        async with box_of(runtime, scratch, memory="64MiB") as box:
            full = await run(box, f"head -c 200M /dev/zero > {place}/big")
            assert "No space left" in full.output or full.outcome == "limit:memory", full
            assert await out(box, f"rm -f {place}/big; echo on") == "on\n"

    asyncio.run(scene())


@on(*WALLED)
def test_more_than_a_runtime_s_own_sixty_four_mebibytes_can_be_written(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            for place in ("/tmp", "~"):
                assert await out(box, f"head -c 100M /dev/zero > {place}/big; wc -c < {place}/big") == "104857600\n"

    asyncio.run(scene())


@on(*EVERY)
def test_a_line_of_a_gigabyte_is_bounded_counted_and_never_held(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = await run(box, "head -c 1000000000 /dev/zero | tr '\\0' x", 120)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        shown = result.output.count("x")
        assert result.outcome == "ok"
        assert shown + result.facts["omitted"] == 1_000_000_000 and str(result.facts["omitted"]) in result.output
        assert grown < 16 * 1024, f"{grown} KiB in the worker"

    asyncio.run(scene())


@on(*EVERY)
def test_a_box_that_waits_costs_no_processor_time(runtime, scratch):
    def used():
        total = 0.0
        for process in box_processes():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
        return total

    async def scene():
        async with box_of(runtime, scratch) as box:
            await out(box, "sleep 1000 & echo on")
            before = used()
            for _ in range(20):  # spare boxes are made meanwhile
                await asyncio.sleep(1.5)
                before, earlier = used(), before
                if before - earlier < 0.08:
                    return
            pytest.fail("it never rests")

    asyncio.run(scene())


@on(*EVERY)
def test_memory_that_is_only_reserved_is_no_limit(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            assert await out(box, "ulimit -v; bash -c 'ulimit -v'") == "unlimited\nunlimited\n"

    asyncio.run(scene())


# --- what must not be seen or reached

SECRETS = {
    "PRORL_TEST_API_KEY": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "https_proxy": "http://user:hunter2@proxy:1",
    "APPTAINERENV_TOKEN": "hunter2",
    "SINGULARITYENV_TOKEN": "hunter2",
    "SLURM_JOB_KEY": "hunter2",
}


@on(*EVERY)
def test_no_secret_of_the_worker_is_in_any_environment_or_command_line(runtime, scratch, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    everybody = "/proc/[0-9]*" if runtime in WALLED else "/proc/self /proc/$$ /proc/$PPID"

    async def scene():
        async with box_of(runtime, scratch) as box:
            grep = "env | cut -d= -f1 | grep -i -e key -e token -e secret -e proxy -e slurm"
            assert (await run(box, grep)).output == "[exit code 1]"
            seen = await run(
                box,
                f"for p in {everybody}; do cat $p/environ $p/cmdline; done 2>/dev/null | tr '\\0' '\\n'; set; export",
            )
            assert "bash" in seen.output and "hunter2" not in seen.output

    asyncio.run(scene())


@on(*WALLED)
def test_neither_homes_nor_processes_of_the_host_are_seen(runtime, tmp_path, scratch):
    (tmp_path / "note").write_text("x")

    async def scene():
        async with box_of(runtime, scratch) as box:
            assert await out(box, "ls -A ~") == ""
            for path in (Path.home(), tmp_path, Path(__file__), Path("/proc/1/root"), Path("/proc/1/cwd")):
                assert (await run(box, f"ls -d '{path}/.'")).facts["exit_code"] != 0, path
            assert (await run(box, "cat /proc/1/environ | tr -d '\\0'")).output.replace("\0", "") in ("", *_DENIED)
            listed = await out(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert "pytest" not in listed
            own = await look(box, "import os\nout = len([p for p in os.listdir('/proc') if p.isdigit()])")
            assert own < 6

    asyncio.run(scene())


_DENIED = ("cat: /proc/1/environ: Permission denied\n",)


@on(*WALLED)
def test_nothing_is_reached_by_name_by_address_or_by_socket(runtime, tmp_path, scratch):
    named = tmp_path / "socket"
    with (
        closing(socket.socket(socket.AF_UNIX)) as host,
        closing(socket.socket(socket.AF_UNIX)) as abstract,
        closing(socket.socket(socket.AF_INET6)) as six,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as datagrams,
    ):
        host.bind(str(named))
        abstract.bind(f"\0prorl-hostile-{os.getpid()}")
        six.bind(("::1", 0))
        datagrams.bind(("127.0.0.1", 0))
        for listener in (host, abstract, six):
            listener.listen()
        datagrams.settimeout(0.3)
        code = f"""
            import socket
            def reach(family, address, kind=socket.SOCK_STREAM):
                try:
                    with socket.socket(family, kind) as one:
                        one.settimeout(2)
                        one.connect(address)
                        one.send(b"x")
                    return "reached"
                except OSError:
                    return "refused"
            def resolve(name):
                try:
                    return socket.getaddrinfo(name, 80)[0][4]
                except OSError:
                    return "refused"
            UDP = socket.SOCK_DGRAM
            out = [
                resolve("example.com"), resolve("metadata.google.internal"),
                reach(socket.AF_INET, ("169.254.169.254", 80)), reach(socket.AF_INET, ("10.0.0.1", 22)),
                reach(socket.AF_INET, ("8.8.8.8", 53), UDP), reach(socket.AF_INET6, ("::1", {six.getsockname()[1]})),
                reach(socket.AF_INET6, ("2001:4860:4860::8888", 53), UDP),
                reach(socket.AF_UNIX, {str(named)!r}), reach(socket.AF_UNIX, "\\0prorl-hostile-{os.getpid()}"),
                reach(socket.AF_UNIX, "/run/dbus/system_bus_socket"), reach(socket.AF_UNIX, "/var/run/munge/munge.socket.2"),
                reach(socket.AF_INET, ("127.0.0.1", {datagrams.getsockname()[1]}), UDP) and "refused",
            ]
        """

        async def scene():
            async with box_of(runtime, scratch) as box:
                return await look(box, code)

        assert set(asyncio.run(scene())) == {"refused"}
        with pytest.raises(TimeoutError):
            datagrams.recv(1)


@on(*WALLED)
def test_no_device_and_no_namespace_helps_out(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            for command in (
                "test -e /dev/fuse",
                "unshare -U true",
                "unshare -Urm true",
                "su -c true",
                "mount -t tmpfs x /mnt",
                "cat /proc/1/mem",
                "cat /dev/kmsg",
                "ls /dev/mem /dev/sda",
            ):
                assert (await run(box, command)).facts["exit_code"] != 0, command

    asyncio.run(scene())


# --- what strikes at the box itself

BLOWS = (
    "pkill -9 python; pkill -9 -f python; true",
    "kill -9 1; kill -STOP 1; kill -SEGV 1; true",
    "for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done 2>/dev/null; true",
    "kill -9 -1",
    "rm -rf /tmp/* /tmp/.* ~ /.prorl /dev/* 2>/dev/null; true",
    "rm -rf --no-preserve-root /* 2>/dev/null; true",
)


@on(*WALLED)
def test_blows_at_files_and_processes_hit_nobody_else(runtime, tmp_path, scratch):
    async def scene():
        async with boxes_of(runtime, scratch) as factory:
            box, other = await factory.start(), await factory.start()
            assert await walled_in(box, tmp_path)
            await out(other, "echo mine > ~/file; sleep 1000 &")
            for blow in BLOWS:
                result = await run(box, blow, 60)
                assert result.outcome in ("ok", "error"), (blow, result)
                assert (await box.call("calculator", {"expression": "6 * 7"}, 30)).output == "42", blow
            assert await out(other, "cat ~/file; kill -0 %1; ls /bin/bash") == "mine\n/bin/bash\n"
            assert await out(await factory.start(), "ls /bin/bash") == "/bin/bash\n"

    asyncio.run(scene())
    assert (tmp_path / "marker").read_text() == "x"


@on(*WALLED)
def test_a_sibling_is_neither_seen_traced_nor_ended(runtime, tmp_path, scratch):
    async def scene():
        async with boxes_of(runtime, scratch) as factory:
            box, other = await factory.start(), await factory.start()
            await out(other, "exec -a sibling sleep 1000 &")
            assert "sibling" not in await out(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            hit = "import ctypes, os\nlibc = ctypes.CDLL(None)\nout = [len(os.listdir('/proc/1/task')), libc.ptrace(16, 1, 0, 0)]"
            assert await look(box, hit) == [1, -1]
            assert await walled_in(box, tmp_path)
            await run(box, "kill -9 -1")
            assert await out(other, "kill -0 %1; echo lives") == "lives\n"

    asyncio.run(scene())


# --- what runtimes do at the wrong moment


@on("apptainer")
def test_jobs_that_hold_files_of_a_packed_image_open_delay_no_end_and_keep_no_mount(runtime, scratch):
    need_runtime(runtime)

    async def scene():
        async with box_of(runtime, scratch, image=str(image("sif"))) as box:
            await out(
                box,
                "for n in 1 2 3; do sleep 1000 < /bin/ls & setsid tail -f /etc/os-release > /dev/null & done; cd /usr/bin",
            )
            mounts = [process for process in box_processes() if "fuse" in process.name()]
            began = time.monotonic()
            await box.close()
            assert mounts and time.monotonic() - began < 5
        await until(lambda: not any(process.is_running() and process.status() != "zombie" for process in mounts))

    asyncio.run(scene())


@on("apptainer")
def test_a_mount_that_fails_for_a_while_costs_boxes_and_not_the_worker(runtime, tmp_path, scratch, monkeypatch):
    broken = tmp_path / "broken"
    words = "FATAL:   container creation failed: fuse mount failed in 10s"
    come_before_apptainer(f'if [ -e {broken} ]; then echo "{words}" >&2; exit 255; fi', tmp_path, monkeypatch)

    async def scene():
        async with boxes_of(runtime, scratch) as factory:
            broken.touch()
            if runtime == "apptainer":  # whose boxes have no mount of their own
                zygote_of(box_processes()).kill()
                await until(lambda: factory._parent.lost)
            with pytest.raises(InfraError, match="fuse mount failed in 10s"):
                for _ in range(5):  # some were made before
                    await (await factory.start()).close()
            broken.unlink()
            assert await out(await factory.start(), "echo on") == "on\n"

    asyncio.run(scene())


@on(*EVERY)
def test_an_interrupt_of_the_worker_leaves_nothing(runtime, scratch):
    """As Ctrl-C reaches it: the event loop is cancelled in the midst of a call."""

    async def scene():
        async with box_of(runtime, scratch) as box:
            call = asyncio.create_task(run(box, "sleep 1000 & setsid sleep 1000 & sleep 1000", 60))
            await asyncio.sleep(0.5)
            call.cancel()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scene())


@on(*EVERY)
def test_what_a_probe_writes_to_its_home_is_no_trap_for_the_next_box(runtime, scratch):
    """Start-up files that a policy leaves are its own box's."""

    async def scene():
        async with boxes_of(runtime, scratch) as factory:
            box = await factory.start()
            await out(
                box, "for f in .bashrc .profile .bash_profile .inputrc; do echo 'echo leaked; exit 1' > ~/$f; done"
            )
            await probe(box, "open('sitecustomize.py', 'w').write('raise SystemExit')")
            assert (await run(box, "exit 1")).facts["restarted"]
            assert await out(box, "echo on") == "on\n"
            assert await out(await factory.start(), "ls ~/.bashrc ~/.profile 2>/dev/null; echo on") == "on\n"

    asyncio.run(scene())
