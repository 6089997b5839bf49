"""Every promise of the table of capabilities, asked of real boxes of every runtime that makes it, by their own eyes."""

import asyncio
import dataclasses
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from prorl_cli.sandbox.capabilities import RUNTIMES as TABLE
from tests.sandbox_kit import RUNTIMES, look, one_box, opened, probe

VARIANTS = (*RUNTIMES, "bwrap with a root")


def runtime_of(variant):
    return variant.removesuffix(" with a root")


def served(variant):
    """`bash` makes a box have a root of its own."""
    return ("calculator", "bash") if "root" in variant else ("calculator",)


def box_of(variant, scratch, **settings):
    return one_box(runtime_of(variant), scratch, serve=served(variant), **settings)


async def clean(variant, scratch):
    async with box_of(variant, scratch) as box:
        seen = await look(box, "import os\nout = str(dict(os.environ)) + open('/proc/self/environ').read()")
        assert "hunter2" not in seen


async def limits(variant, scratch):
    blows = {
        "cpu": "while True: pass",
        "memory": "x = bytearray(2**20)\nwhile True: x += bytes(2**20)",
        "processes": "import os, time\nfor _ in range(100): os.fork() or time.sleep(60)\ntime.sleep(20)",
        "disk": "import time\nf = open('big', 'wb')\nwhile True: f.write(bytes(2**20)) and f.flush() or time.sleep(0.01)",
    }
    for name in TABLE[variant.split()[0]].limits:
        if name == "disk" and variant == "bwrap":
            continue  # has no disk to write to
        async with box_of(variant, scratch, cpu="2s", processes=8, disk="20MiB", memory="128MiB") as box:
            assert (await probe(box, blows[name], 30)).outcome == f"limit:{name}"


async def processes(variant, scratch):
    async with box_of(variant, scratch) as box:
        seen = await look(box, "import os\nout = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())")
        assert seen[0] == 1 and len(seen) == 2


async def files(variant, scratch):
    (scratch / "note").write_text("x")
    paths = [str(scratch / "note"), str(Path.home()), "/etc/shadow", "/sys/kernel"]
    write = "open('/tmp/mine', 'w').write('x')\nimport os\nout = os.listdir('/tmp')"
    async with opened(runtime_of(variant), scratch / "boxes", serve=served(variant)) as factory:
        box, other = await factory.start(), await factory.start()
        seen = await look(box, f"import os\nout = [p for p in {paths!r} if os.access(p, os.R_OK)]")
        assert seen == [] or (seen == ["/etc/shadow"] and "apptainer" in variant), "an image may have one of its own"
        assert (await probe(box, write)).output == "['mine']"
        assert (await probe(other, "import os\nout = os.listdir('/tmp')")).output == "[]"
        full = await probe(box, "f = open('/tmp/big', 'wb')\nfor _ in range(800): f.write(bytes(2**20))", 30)
        assert "No space left" in full.output or full.outcome == "limit:memory", full


async def no_network(variant, scratch):
    with closing(socket.socket()) as tcp, closing(socket.socket(socket.AF_UNIX)) as abstract:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        abstract.bind(f"\0prorl-promise-{os.getpid()}")
        abstract.listen()
        code = f"""
            import socket
            def reached(family, address):
                try:
                    return socket.socket(family).connect(address) is None
                except OSError:
                    return False
            out = [reached(socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})), reached(socket.AF_INET, ("1.1.1.1", 53)),
                   reached(socket.AF_UNIX, "\\0prorl-promise-{os.getpid()}")]
        """
        async with box_of(variant, scratch) as box:
            assert await look(box, code) == [False] * 3


async def no_power(variant, scratch):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
        out = [int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"],
               libc.unshare(0x10000000), libc.unshare(0x00020000), libc.mount(b"t", b"/tmp", b"tmpfs", 0, None)]
    """
    async with box_of(variant, scratch) as box:
        assert await look(box, code) == [0, 0, "1", -1, -1, -1]


async def unkillable(variant, scratch):
    async with box_of(variant, scratch) as box:
        for blow in ("os.kill(1, 9)", "os.kill(1, 19)", "os.kill(-1, 9)"):  # walled, or it would hit the machine
            await probe(box, f"import os\nassert os.getppid() == 1\n{blow}")
        assert (await box.call("calculator", {"expression": "1"}, 10)).output == "1"


ASKED = {asked.__name__: asked for asked in (clean, limits, processes, files, no_network, no_power, unkillable)}
ELSEWHERE = {"images", "alike"}
"""Asked in test_sandbox_roots, test_sandbox_alike and cluster/test_apptainer."""


def test_every_promise_of_the_table_is_asked():
    assert {field.name for field in dataclasses.fields(TABLE["bwrap"])} == ASKED.keys() | ELSEWHERE


@pytest.mark.parametrize("promise", ASKED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_runtime_promises_its_boxes_find(variant, promise, tmp_path, monkeypatch):
    if not getattr(TABLE[variant.split()[0]], promise):
        return  # it promises nothing of the kind, and trying it would not be kind either
    monkeypatch.setenv("PRORL_TEST_SECRET", "hunter2")
    asyncio.run(ASKED[promise](variant, tmp_path))
