"""What the kernel counts for a user, and not for a box: no box takes it from its siblings, nor hands them anything by it."""

import asyncio
import ctypes
import os
from textwrap import dedent

import pytest

from tests.hostile_kit import box_of, boxes_of, on, run, scratch
from tests.images import image
from tests.sandbox_bugs import EVERY, WALLED
from tests.sandbox_kit import EACH, at_work, look, need_runtime, probe

__all__ = ["scratch"]

ADD_KEY, KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
SESSION, JOIN, SEARCH = -3, 1, 10


async def beside(runtime, scratch, greed, act):
    """What `act` finds in the sibling of a box that has run `greed`, and keeps what that took."""
    async with boxes_of(runtime, scratch) as factory:
        greedy, sibling = await factory.start(), await factory.start()
        keeps = asyncio.create_task(probe(greedy, f"{dedent(greed)}\nimport time\ntime.sleep(60)", 90))
        await at_work()
        await asyncio.sleep(2)
        assert not keeps.done(), keeps.result()
        found = await look(sibling, act)
        assert (await (await factory.start()).call("calculator", {"expression": "6 * 7"}, 30)).output == "42"
        keeps.cancel()
        return found


@on(*WALLED)
def test_descriptors_on_their_way_in_one_box_keep_its_worker_from_nothing(runtime, scratch):
    greed = """
        import array, os, socket
        packet = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 250))]
        pairs, sent = [], 0
        try:
            while sent < 40_000:
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)
                try:
                    while sent < 40_000:
                        pairs[-1][0].sendmsg([b"x"], packet)
                        sent += 250
                except BlockingIOError:
                    pass
        except OSError:
            assert sent > 500
    """
    assert asyncio.run(beside(runtime, scratch, greed, "out = 1")) == 1


@on(*WALLED)
def test_watchers_of_files_in_one_box_leave_some_to_its_siblings(runtime, scratch):
    greed = "import ctypes\nlibc = ctypes.CDLL(None)\nwhile libc.inotify_init() >= 0: pass"
    assert asyncio.run(beside(runtime, scratch, greed, "import ctypes\nout = ctypes.CDLL(None).inotify_init()")) >= 0


def keys(call):
    return f"import ctypes\nlibc = ctypes.CDLL(None)\nout = libc.syscall({call})"


FIND = keys(f'{KEYCTL}, {SEARCH}, {SESSION}, b"user", b"prorl-test", 0')
ADD = keys(f'{ADD_KEY}, b"user", b"prorl-test", b"secret", 6, {SESSION}')


@pytest.fixture
def key():
    """In the session keyring of this process, as of one that logged in."""
    libc = ctypes.CDLL(None)
    assert libc.syscall(KEYCTL, JOIN, None) > 0
    assert libc.syscall(ADD_KEY, b"user", b"prorl-test", b"secret", 6, SESSION) > 0


@on(*EVERY)
def test_keys_of_the_workers_session_are_not_its_boxes(runtime, scratch, key):
    async def scene():
        async with box_of(runtime, scratch) as box:
            return await look(box, FIND)

    assert asyncio.run(scene()) == -1


@on(*EVERY)
def test_no_box_leaves_a_key_for_another(runtime, scratch):
    async def scene():
        async with boxes_of(runtime, scratch) as factory:
            return await look(await factory.start(), ADD), await look(await factory.start(), FIND)

    assert asyncio.run(scene()) == (-1, -1)


@on(*WALLED)
def test_memory_of_a_process_whose_first_thread_has_ended_is_seen(runtime, scratch):
    hide = """
import ctypes, os, threading, time
def take():
    time.sleep(0.5)
    taken = bytearray(b"x" * 2**20) * 400
    time.sleep(60)
threading.Thread(target=take).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
    python = "/.prorl/python/loader --library-path /.prorl/python/shared /.prorl/python/bin/python3.* -I"

    async def scene():
        async with box_of(runtime, scratch, memory="128MiB") as box:
            return (await run(box, f"{python} -c '{hide}' & sleep 10")).outcome

    assert asyncio.run(scene()) == "limit:memory"


FORMS = [(runtime, form) for runtime in ("apptainer", EACH) for form in ("folder", "sif")]


@pytest.mark.cluster
@pytest.mark.parametrize(("runtime", "form"), FORMS)
def test_a_file_without_a_name_fills_no_disk_over_any_form_of_an_image(runtime, form, scratch):
    need_runtime(runtime)
    assert asyncio.run(filled(runtime, scratch, image=str(image(form)))) == "limit:disk"


@on("bwrap", "process")
def test_a_file_without_a_name_fills_no_disk(runtime, scratch):
    assert asyncio.run(filled(runtime, scratch)) == "limit:disk"


async def filled(runtime, scratch, **settings):
    fill = """
        import os, time
        f = open("big", "wb")
        os.remove("big")
        for _ in range(400):
            f.write(bytes(2**20))
            time.sleep(0.01)
    """

    async with box_of(runtime, scratch, disk="20MiB", **settings) as box:
        return (await probe(box, fill, 30)).outcome
