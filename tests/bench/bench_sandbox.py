"""What tools in a box cost: an action of bash and of python, a start, a crowd of starts, a flood of output.

    python -m tests.bench.bench_sandbox OUT.json

Writes `[{"cell", "ours", "peer", "unit", "ratio", "bar", "met"}]`; where there is no peer, its columns are null. Arms
are alternated in one run, and all of them run in the same image: `apptainer` in it packed and unpacked, in one container
and, where starts are measured, in one each; `bwrap` in the folder; SWE-ReX and tmux under `apptainer exec` (`in_image`).
A ratio is how many times the peer takes. Without
Apptainer for an unprivileged user, `bwrap` has the node's programs and nothing else is measured but the toy boxes.
"""

import asyncio
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import open_boxes, root
from prorl_cli.sandbox.apptainer import ContainerEach, OneContainer
from prorl_cli.sandbox.box import Box
from prorl_cli.sandbox.factory import opened_in
from prorl_cli.sandbox.parent import Parent
from prorl_cli.sandbox.runtimes import Bwrap, Process
from tests.bench import crowd
from tests.bench.in_image import Peer, kinds
from tests.images import apptainer_works, image
from tests.sandbox_kit import bwrap_works

ROUNDS = 12
COMMANDS = ("echo hello", "ls / > /dev/null", "cd /tmp && pwd")
TIMES = {"ours": 30, "swe-rex": 4, "tmux": 1}
"""How often all commands are run in a round: the slow arms need no more to be known."""
STARTS, TOYS = 40, 300
FLOOD, PEER_FLOOD = 100_000_000, 2_000_000
PAUSE_S = 0.02
NAMES = {"swe-rex": "SWE-ReX", "tmux": "a tmux pane polled as by OpenHands"}


def cell(name, ours, unit, bar=None, peer=None, ratio=None, at_least=False):
    judged = ours if ratio is None else ratio
    met = None if bar is None else bool(judged >= bar if at_least else judged <= bar)
    figures = {"ours": _short(ours), "peer": _short(peer), "unit": unit, "ratio": _short(ratio)}
    return {"cell": name, **figures, "bar": bar, "met": met}


def _short(number):
    return None if number is None else float(f"{number:.4g}")


def quantiles(seconds):
    """p50 and p99 in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49] * 1e3, cuts[98] * 1e3


def kinds_of_boxes():
    """Name of each, and the recipe's section."""
    if apptainer_works():
        folder, sif = str(image("folder")), str(image("sif"))
        yield "apptainer, folder", Sandbox(runtime="apptainer", image=folder, cpu="1h")
        yield "apptainer, SIF", Sandbox(runtime="apptainer", image=sif, cpu="1h")
        yield "bwrap, folder", Sandbox(runtime="bwrap", image=folder, cpu="1h")
    elif bwrap_works():
        yield "bwrap, the node's programs", Sandbox(runtime="bwrap", cpu="1h")


@contextlib.asynccontextmanager
async def one_box(settings, serve):
    with tempfile.TemporaryDirectory() as scratch:
        factory = await open_boxes(settings, scratch=Path(scratch), serve=serve)
        try:
            yield await factory.start()
        finally:
            await factory.close()


async def timed(box, tool, **arguments):
    began = time.perf_counter()
    answer = await box.call(tool, arguments, 120)
    seconds = time.perf_counter() - began
    assert answer.outcome == "ok", answer
    return seconds


# ── an action of bash ──────────────────────────────────────────────────────────────────────────────────────


async def shell_cells():
    """Every arm has a shell that stays; a round is some commands in each."""
    async with contextlib.AsyncExitStack() as stack:
        boxes = {name: await stack.enter_async_context(one_box(s, ("bash",))) for name, s in kinds_of_boxes()}
        peers = {kind: stack.enter_context(Peer(kind)) for kind in kinds()} if apptainer_works() else {}
        arms = {name: [] for name in (*boxes, *peers)}
        for _ in range(ROUNDS + 1):  # the first warms up
            for name, peer in peers.items():
                arms[name].append(await asyncio.to_thread(peer.seconds, COMMANDS * TIMES[name]))
            for name, box in boxes.items():
                arms[name].append([await timed(box, "bash", command=c) for c in COMMANDS * TIMES["ours"]])
    rounds = {name: of_arm[1:] for name, of_arm in arms.items()}
    return [row for name in boxes for row in _shell_rows(name, rounds, peers)]


def _shell_rows(name, rounds, peers):
    p50, p99 = quantiles(list(chain.from_iterable(rounds[name])))
    yield cell(f"bash action p50, {name}", p50, "ms", bar=5)
    yield cell(f"bash action p99, {name}", p99, "ms")
    for kind in peers:
        pairs = zip(rounds[name], rounds[kind], strict=True)
        ratio = statistics.median(statistics.median(theirs) / statistics.median(ours) for ours, theirs in pairs)
        of_peer = statistics.median(chain.from_iterable(rounds[kind])) * 1e3
        bar = 20 if kind == "swe-rex" else None
        yield cell(f"bash action p50, {name} / {NAMES[kind]}", p50, "ms", bar, of_peer, ratio, at_least=True)


async def flood_cells():
    """A hundred megabytes through one action; the peer gets two, for it takes the square."""
    theirs = None
    if apptainer_works() and "swe-rex" in kinds():
        with Peer("swe-rex") as peer:
            theirs = PEER_FLOOD / peer.seconds([_flood(PEER_FLOOD)])[0] / 1e6
    rows = []
    for name, settings in kinds_of_boxes():
        async with one_box(settings, ("bash",)) as box:
            await timed(box, "bash", command="true")
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            speed = FLOOD / min([await timed(box, "bash", command=_flood(FLOOD)) for _ in range(3)]) / 1e6
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        rows.append(cell(f"100 MB of output through one action, {name}", speed, "MB/s", 50, at_least=True))
        rows.append(cell(f"worker's memory meanwhile, {name}", grown, "MiB", 16))
        if theirs:
            rows.append(
                cell(f"output of one action, {name} / SWE-ReX (2 MB)", speed, "MB/s", None, theirs, speed / theirs)
            )
    return rows


def _flood(size):
    return f"yes 'a line of some output, as programs print' | head -c {size}"


# ── python ─────────────────────────────────────────────────────────────────────────────────────────────────


async def python_cells():
    rows = []
    for name, settings in kinds_of_boxes():
        async with one_box(settings, ("python",)) as box:
            first = await timed(box, "python", code="x = 1")
            seconds = [await timed(box, "python", code="x += 1\nx") for _ in range(ROUNDS * TIMES["ours"])]
        p50, p99 = quantiles(seconds)
        rows.append(cell(f"python cell p50, warm, {name}", p50, "ms", 2))
        rows.append(cell(f"python cell p99, warm, {name}", p99, "ms"))
        rows.append(cell(f"first python cell, {name}", first * 1e3, "ms"))
    return rows


# ── starts ─────────────────────────────────────────────────────────────────────────────────────────────────

BARS = {"apptainer, SIF": 300, "apptainer, folder": 100, "bwrap, folder": 30, "bwrap, the node's programs": 30}


def ways():
    """Of starting boxes: name, settings and runtime."""
    tools = root.Tools(serve=("bash",))
    for name, settings in kinds_of_boxes():
        if settings.runtime == "bwrap":
            yield name, settings, Bwrap(tools, settings.image)
        else:
            yield name, settings, OneContainer(tools, settings)
            yield f"{name}, a container each", settings, ContainerEach(tools, settings, "asked for")


async def start_cells():
    rows = []
    for name, settings, runtime in ways():
        ours, bare = await whole_starts(settings, runtime)
        p50, p99 = quantiles(ours)
        rows.append(cell(f"start to first bash action p50, no spare box, {name}", p50, "ms", BARS.get(name)))
        rows.append(cell(f"start to first bash action p99, no spare box, {name}", p99, "ms"))
        if bare:
            rows.append(cell(f"the whole of `apptainer exec IMAGE true` p50, in turn with it, {name}", bare, "ms"))
        for rhythm, pause_s in (("at leisure", 1.0), ("back to back", 0.0)):
            seconds = await first_answers(settings, runtime, "bash", {"command": "echo up"}, STARTS, pause_s)
            rows.append(cell(f"start to first bash action p50, {rhythm}, {name}", quantiles(seconds)[0], "ms"))
    return rows


async def whole_starts(settings, runtime):
    """A parent's very first box has no spare before it; the time the parent itself takes to come up is left out.
    In turn with each of an image, a bare command: no container can be up sooner."""
    seconds, bare = [], []
    for _ in range(STARTS):
        if settings.runtime == "apptainer":
            bare.append(_bare_exec(settings.image))
        with tempfile.TemporaryDirectory() as scratch:
            parent = await Parent.launch(runtime, settings, Path(scratch))
            began = time.perf_counter()
            box = await Box.start(parent)
            await timed(box, "bash", command="echo up")
            seconds.append(time.perf_counter() - began)
            await box.close()
            await parent.close()
    return seconds, quantiles(bare)[0] if bare else None


def _bare_exec(path):
    began = time.perf_counter()
    subprocess.run(["apptainer", "--quiet", "exec", path, "true"], cwd="/", capture_output=True, check=True)
    return time.perf_counter() - began


async def first_answers(settings, runtime, tool, arguments, rounds, pause_s):
    """`pause_s` is what a worker leaves its zygote to make a spare box between two starts."""
    seconds = []
    with tempfile.TemporaryDirectory() as scratch:
        factory = await opened_in(runtime, settings, Path(scratch))
        for _ in range(rounds):
            await asyncio.sleep(pause_s)
            began = time.perf_counter()
            box = await factory.start()
            await timed(box, tool, **arguments)
            seconds.append(time.perf_counter() - began)
            await box.close()
        await factory.close()
    return seconds


def crowd_cells():
    for name, settings, runtime in ways():
        what = f"{crowd.AT_ONCE} boxes at once, {name}"
        seconds = asyncio.run(crowd.answers(settings, runtime, crowd.AT_ONCE))
        yield cell(f"{what}: all up", len(seconds), "boxes", crowd.AT_ONCE, at_least=True)
        p50, p99 = quantiles(seconds)
        yield cell(f"{what}: first answer p50", p50, "ms")
        yield cell(f"{what}: first answer p99", p99, "ms")
        if settings.runtime == "apptainer":
            ours, theirs = crowd.cpu_a_start(settings, runtime), crowd.cpu_of_an_exec(settings.image)
            label = f"{what}: processor a start / apptainer exec IMAGE python3 -c pass"
            yield cell(label, ours * 1e3, "ms", 1.5, theirs * 1e3, ours / theirs)


# ── boxes that need nothing ────────────────────────────────────────────────────────────────────────────────


async def toy_cells():
    """The calculator's boxes: Python and nothing else, forked from a warm parent; beside a fresh interpreter."""
    rows = []
    tools = root.Tools(serve=("calculator",))
    for runtime in (Bwrap(tools), Process(tools)) if bwrap_works() else (Process(tools),):
        for rhythm, pause_s in (("at leisure", PAUSE_S), ("back to back", 0.0)):
            expression = {"expression": "(17 + 3) * 21"}
            settings = Sandbox(runtime=runtime.name)
            seconds = await first_answers(settings, runtime, "calculator", expression, TOYS, pause_s)
            for what, value in zip(("p50", "p99"), quantiles(seconds), strict=True):
                rows.append(cell(f"calculator box to first answer {what}, {rhythm}, {runtime.name}", value, "ms"))
    p50, p99 = quantiles(fresh_interpreters(TOYS // 4))
    return [*rows, cell("a fresh interpreter p50", p50, "ms"), cell("a fresh interpreter p99", p99, "ms")]


def fresh_interpreters(rounds):
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([root.interpreter(), "-I", "-S", "-c", "print((17 + 3) * 21)"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


def main(out):
    rows = []
    for cells in (shell_cells, python_cells, start_cells, flood_cells, toy_cells):
        rows += asyncio.run(cells())
    rows += crowd_cells()
    Path(out).write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{platform.node()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    for row in rows:
        bar = "" if row["bar"] is None else f"  bar {row['bar']}: {'met' if row['met'] else 'NOT MET'}"
        beside = "" if row["peer"] is None else f"  peer {row['peer']:.3f}, ratio {row['ratio']:.2f}"
        print(f"{row['cell']:<100} {row['ours']:>10.3f} {row['unit']}{beside}{bar}")


if __name__ == "__main__":
    main(sys.argv[1])
