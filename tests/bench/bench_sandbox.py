"""Milliseconds from asking for a box to its first answer, per runtime: `python -m tests.bench.bench_sandbox [ROUNDS]`.

"at leisure" leaves the parent time to make a spare box, as a worker between two first calls does; "back to back"
never does. "alone" has no spare at all, so it is a whole start. For scale, the same interpreter started afresh, and
what Apptainer takes by itself. Apptainer's rows need an unprivileged user.
"""

import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prorl_cli.recipe import Sandbox
from prorl_cli.sandbox import open_boxes, root
from prorl_cli.sandbox.apptainer import Apptainer
from prorl_cli.sandbox.box import Box
from prorl_cli.sandbox.parent import Parent
from tests.images import FORMS, apptainer_works, image

PAUSE_S = 0.02
LAUNCHED_SHARE = 20
"""Apptainer boxes take so much longer than forked ones that a round in twenty is enough."""


async def first_answers(factory, rounds, pause_s):
    seconds = []
    for _ in range(rounds):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        box = await factory.start()
        await box.call("calculator", {"expression": "(17 + 3) * 21"}, 10)
        seconds.append(time.perf_counter() - began)
        await box.close()
    return seconds


def fresh_interpreters(rounds):
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([root.interpreter(), "-I", "-S", "-c", "print((17 + 3) * 21)"], capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


async def whole_starts(scratch, rounds, settings):
    """A factory's very first box has no spare before it; the time its parent takes to come up is left out."""
    seconds = []
    for _ in range(rounds):
        parent = await Parent.launch(Apptainer(root.Tools(serve=("calculator",)), settings), settings, scratch)
        began = time.perf_counter()
        box = await Box.start(parent)
        await box.call("calculator", {"expression": "(17 + 3) * 21"}, 10)
        seconds.append(time.perf_counter() - began)
        await box.close()
        await parent.close()
    return seconds


def by_itself(path, rounds):
    seconds = []
    command = ["apptainer", "-q", "exec", "--userns", "--containall", "--writable-tmpfs", path, "/bin/true"]
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, cwd="/", capture_output=True, check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


async def of_image(form, rounds):
    settings = Sandbox(runtime="apptainer", image=str(image(form)))
    with tempfile.TemporaryDirectory() as scratch:
        row(f"apptainer, {form}, alone", await whole_starts(Path(scratch), rounds, settings))
        factory = await open_boxes(settings, scratch=Path(scratch))
        row(f"apptainer, {form}, at leisure", await first_answers(factory, rounds, 1.0))
        row(f"apptainer, {form}, back to back", await first_answers(factory, rounds, 0))
        await factory.close()
    row(f"apptainer exec, {form}", by_itself(settings.image, rounds))


def row(name, seconds):
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{name:32} p50 {cuts[49] * 1e3:6.2f} ms   p99 {cuts[98] * 1e3:6.2f} ms")


async def main(rounds):
    for runtime in ("bwrap", "process") if shutil.which("bwrap") else ("process",):
        with tempfile.TemporaryDirectory() as scratch:
            factory = await open_boxes(Sandbox(runtime=runtime), scratch=Path(scratch))
            row(f"{runtime}, at leisure", await first_answers(factory, rounds, PAUSE_S))
            row(f"{runtime}, back to back", await first_answers(factory, rounds, 0))
            await factory.close()
    for form in FORMS if apptainer_works() else ():
        await of_image(form, max(20, rounds // LAUNCHED_SHARE))
    row("a fresh interpreter", fresh_interpreters(rounds // 4))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
