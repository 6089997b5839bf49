"""Boxes with a probe in them, for the sandbox tests: real processes, and a count of what is left afterwards."""

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import textwrap
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import open_boxes
from prorl_cli.sandbox.apptainer import OneContainer
from tests.conftest import need
from tests.images import apptainer_works, image

PROBE = Path(__file__).parent / "sandbox_probe"
EACH = "apptainer each"
"""A container for each box, as where the kernel gives them no overlay within one: by `conftest.container_each`."""
CONTAINERS = tuple(pytest.param(name, marks=pytest.mark.cluster) for name in ("apptainer", EACH))
RUNTIMES = ("bwrap", "process", *CONTAINERS)
PR_SET_CHILD_SUBREAPER = 36


def need_runtime(runtime):
    if runtime == "bwrap":
        need("bwrap", bwrap_works())
    if runtime in ("apptainer", EACH):
        need("apptainer", apptainer_works())


def sandbox(runtime, **settings):
    """The recipe's section; `apptainer` boxes are of the unpacked test image unless `image` says otherwise."""
    if runtime in ("apptainer", EACH):
        settings = {"image": str(image())} | settings
    return Sandbox(runtime=runtime.removesuffix(" each"), **settings)


class NoOverlay(OneContainer):
    def zygote(self, own):
        raise UserError("no overlay in a container: invented by a test")


def come_before_apptainer(script, folder, monkeypatch):
    """A program of that name, found first, which runs some lines of shell and then is the real one."""
    program = folder / "apptainer"
    program.write_text(f'#!/bin/sh\n{script}\nexec {shutil.which("apptainer")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@cache
def bwrap_works():
    """Installed, and the kernel lets this user have namespaces."""
    trial = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    return bool(shutil.which("bwrap")) and subprocess.run(trial, capture_output=True).returncode == 0


@asynccontextmanager
async def opened(runtime, scratch, serve=("calculator",), **settings):
    """A factory whose boxes serve `probe` besides."""
    need_runtime(runtime)
    factory = await open_boxes(sandbox(runtime, **settings), scratch=scratch, serve=serve, tools=[PROBE])
    try:
        yield factory
    finally:
        await factory.close()


@asynccontextmanager
async def one_box(runtime, scratch, **settings):
    async with opened(runtime, scratch, **settings) as factory:
        box = await factory.start()
        try:
            yield box
        finally:
            await box.close()


async def probe(box, code, timeout_s=20.0):
    return await box.call("probe", {"code": textwrap.dedent(code)}, timeout_s)


async def look(box, code):
    """What `out` is after `code` ran in the box; JSON in between."""
    result = await probe(box, f"import json\n{textwrap.dedent(code)}\nout = json.dumps(out)")
    assert result.outcome == "ok", result
    return json.loads(result.output)


def box_processes(worker=None):
    """Every process that serves the boxes of process `worker` (this one), parents first; not what other tests in this
    process keep: multiprocessing's, and a whole cluster."""
    found = []
    for child in psutil.Process(worker).children():
        if not _is_of(child, "tests.cluster.keeper"):
            found.append(child)
            with suppress(psutil.NoSuchProcess):
                found += child.children(recursive=True)
    return [process for process in found if not _is_of(process, "multiprocessing")]


def _is_of(process, module):
    return any(module in word for word in _words(process))


def top_of(processes):
    """What the worker started: the zygote, or bwrap or a launcher around it. Orphans of an earlier one may still be
    about."""
    serving = (process for process in processes if any("zygote.main()" in word for word in _words(process)))
    first = next(serving)
    return launcher if (launcher := first.parent()) and _launches(launcher) else first


def zygote_of(processes):
    """The warm parent: the only child of bwrap's own process, or a launcher's, beside what mounts an image for it."""
    top = top_of(processes)
    if not _launches(top) and top.name() != "bwrap":
        return top
    return next(child for child in top.children() if "fuse" not in child.name())


def _words(process):
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def has_grandchildren(process):
    """Whether any child has children; those of a zygote come and go."""
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            if child.children():
                return True
    return False


def first_processes():
    """Of every box, spare ones included."""
    return [first for box in zygote_of(box_processes()).children() if (first := first_process(box))]


def busy():
    """The first processes of boxes that run a tool now; a box being forked looks like that for a moment."""
    with suppress(psutil.NoSuchProcess):
        return [first for first in first_processes() if first.children()]
    return []


async def at_work():
    """The first process of the one box that runs a tool, for a while; a box being forked only looks like that."""
    deadline, since, seen = time.monotonic() + 10, time.monotonic(), []
    while len(seen) != 1 or time.monotonic() - since < 0.2:
        assert time.monotonic() < deadline, f"not one box at work but {len(seen)}"
        if (found := busy()) != seen:
            since, seen = time.monotonic(), found
        await asyncio.sleep(0.01)
    return seen[0]


def first_process(box):
    """Of a child of the zygote: itself, or what its launcher has started, once it has."""
    if not _launches(box):
        return box
    return next((child for child in box.children() if "/.prorl/python/loader" in _words(child)), None)


def _launches(process):
    return "pptainer" in "".join(_words(process)[:1])


def oom_scores(processes):
    """Of those that still exist."""
    files = [Path(f"/proc/{process.pid}/oom_score_adj") for process in processes]
    with suppress(FileNotFoundError, ProcessLookupError):
        return {int(file.read_text()) for file in files}
    return None


@contextmanager
def orphans_come_here():
    """Whatever outlives its parent becomes a child of this process, where `settle` sees it."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def settle(known=(), within_s=30.0):
    """Wait until this process has no children but the known ones; those left are returned."""
    deadline = time.monotonic() + within_s
    while left := [child for child in box_processes() if child.pid not in known]:
        reap(left)
        if time.monotonic() > deadline:
            return [f"{child.pid} of {child.ppid()}: {child.status()} {_words(child)[-2:]}" for child in left]
        time.sleep(0.01)
    return []


def reap(processes):
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            continue


async def until(condition, within_s=30.0):
    """Poll a fact of the operating system that nothing announces."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "did not come about"
        await asyncio.sleep(0.005)
