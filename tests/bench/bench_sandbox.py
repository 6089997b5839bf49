"""Milliseconds from asking for a box to its first answer, per runtime: `python -m tests.bench.bench_sandbox [ROUNDS]`.

"at leisure" leaves the parent time to fork a spare box, as a worker between two first calls does; "back to back"
never does. For scale, the same interpreter started afresh.
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

PAUSE_S = 0.02


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


def row(name, seconds):
    cuts = statistics.quantiles(seconds, n=100)
    print(f"{name:24} p50 {cuts[49] * 1e3:6.2f} ms   p99 {cuts[98] * 1e3:6.2f} ms")


async def main(rounds):
    for runtime in ("bwrap", "process") if shutil.which("bwrap") else ("process",):
        with tempfile.TemporaryDirectory() as scratch:
            factory = await open_boxes(Sandbox(runtime=runtime), scratch=Path(scratch))
            row(f"{runtime}, at leisure", await first_answers(factory, rounds, PAUSE_S))
            row(f"{runtime}, back to back", await first_answers(factory, rounds, 0))
            await factory.close()
    row("a fresh interpreter", fresh_interpreters(rounds // 4))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
