"""A run on a real Slurm of this machine: time to the first step, what it asks of the filesystem, what `status` costs.

`python -m tests.bench.bench_cluster OUT.json`, where vLLM, DeepSpeed and Apptainer are installed. Both recipes have two
rollout nodes, an engine node and a learner node. There is no peer: where there is a bar, `ratio` is against it.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prorl_cli.metrics import read_rows
from prorl_cli.rundir import RunDir
from prorl_cli.spool.trajectories import TrajectoryFollower
from tests.bench.bench_spool import write_index
from tests.bench.inotify import Watch
from tests.cluster.slurm_cluster import SlurmCluster
from tests.quick_run import ROOT, until
from tests.sif_images import CACHE, build

STEPS = 24
WINDOW = (4, 20)
"""Steps between which names are counted: past the start, before the end."""

TRAJECTORIES, WORKERS = 100_000, 16

ON_SLURM = [
    "cluster.executor=slurm", "cluster.time=30m", "cluster.rollout.nodes=2", "cluster.rollout.partition=cpu",
    "cluster.engine.partition=gpu", "cluster.engine.gpus=1", "cluster.learner.partition=gpu", "cluster.learner.gpus=1",
    f"learner.steps={STEPS}", "eval.n=0", "warmstart.steps=200",
]  # fmt: skip


def cell(name, value, unit, bar=None):
    return {
        "cell": name, "ours": round(value, 4), "peer": None, "unit": unit,
        "ratio": None if bar is None else round(value / bar, 3), "bar": bar, "met": None if bar is None else value < bar,
    }  # fmt: skip


def prorl(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "prorl_cli", *map(str, arguments)], cwd=ROOT, check=True, **options)


def embedded_cells(root: Path):
    """The quickstart with the embedded engine: its start, the names it makes between two steps, `status` of it."""
    overrides = [word for value in ON_SLURM for word in ("--set", value)]
    yield from start_cells("embedded", root, "recipes/quickstart.yaml", *overrides)
    yield from name_cells(RunDir(root))
    ended(RunDir(root))
    yield from status_cells(RunDir(root))


def real_cells(root: Path):
    """`recipes/ci-cluster.yaml` with Apptainer, vLLM and DeepSpeed: its start."""
    build("math", definition="ci-cluster")
    os.environ["PRORL_CACHE"] = str(CACHE)
    yield from start_cells("real parts", root, "recipes/ci-cluster.yaml", "--set", "learner.steps=1")
    ended(RunDir(root))


def start_cells(parts, root: Path, recipe, *overrides):
    """From `prorl launch` to the first step, split by whose time it is."""
    began = time.time()
    prorl("launch", recipe, "--run-dir", root, *overrides)
    run = RunDir(root)
    until(lambda: run.weight_folders(), 600, "the first weights")
    follower = TrajectoryFollower(run)
    until(lambda: follower.poll(), 600, "the first trajectory")
    sampled = time.time()
    until(lambda: len(run.weight_folders()) > 1, 600, "the first step")
    [job] = run.jobs.glob("submitted-*/job.json")
    submitted, started = job.stat().st_mtime, run.claim(1).stat().st_mtime
    prepared, trained = (run.weight(version).stat().st_mtime for version in (0, 1))
    yield cell(f"{parts}: prorl launch: checks and submission", submitted - began, "s")
    yield cell(f"{parts}: Slurm, and importing prorl: from submission to the attempt", started - submitted, "s")
    yield cell(f"{parts}: warm start", prepared - started, "s")
    yield from rollout_cells(parts, run, prepared, sampled)
    yield cell(f"{parts}: first trajectory to first step", trained - sampled, "s")
    yield cell(f"{parts}: in all", trained - began, "s")


def rollout_cells(parts, run, prepared, sampled):
    servers = list(read_rows(run, "start"))
    if not servers:
        yield cell(f"{parts}: roles start, first trajectory", sampled - prepared, "s")
        return
    [server] = servers
    asked = server["t"] - server["start_s"]
    yield cell(f"{parts}: roles start, weights staged", asked - prepared, "s")
    yield cell(f"{parts}: vLLM's own: its server starts and answers for the first weights", server["start_s"], "s")
    yield cell(f"{parts}: first trajectory", sampled - server["t"], "s")


def ended(run: RunDir):
    until(lambda: run.exit(1).exists(), 600, "the end of the run")


def name_cells(run: RunDir):
    reach(run, WINDOW[0])
    first, began, watch, before = step(run), time.monotonic(), Watch(run.root), finished(run)
    reach(run, WINDOW[1])
    last, seconds, counts = step(run), time.monotonic() - began, dict(watch.counts)
    thousands = (finished(run) - before) / 1000
    names = sum(counts.get(kind, 0) for kind in ("created", "renamed", "removed"))
    what = f"steps {first} to {last}, {1000 * thousands:.0f} trajectories"
    yield cell(f"names created, renamed, removed per 1,000 trajectories ({what})", names / thousands, "names", 200)
    for kind in ("created", "renamed", "removed"):
        yield cell(f"  {kind}", counts.get(kind, 0) / thousands, "names")
    yield cell("opens by everybody, most of them polling", counts.get("opened", 0) / seconds, "opens/s")


def reach(run, wanted):
    until(lambda: step(run) >= wanted or run.exit(1).exists(), 600, f"step {wanted}")
    assert step(run) >= wanted, f"the run ended early: {run.exit(1).read_text()}"


def step(run):
    return max(run.weight_folders(), default=0)


def finished(run):
    return len(TrajectoryFollower(run).poll())


def status_cells(run: RunDir):
    """The logs of a long run on top of a real one's directory."""
    base = status_cost(run)
    for worker in range(WORKERS):
        write_index(run.trajectory_log(f"rollout-node{worker}-1-{worker:08x}"), TRAJECTORIES // WORKERS)
    seconds, mebibytes = status_cost(run)
    what = f"{TRAJECTORIES} trajectories, {WORKERS} workers, {len(list(read_rows(run, 'step')))} steps"
    yield cell(f"status --once: {what}", seconds, "s", 1.0)
    yield cell("status --once: memory beyond that of a short run", mebibytes - base[1], "MiB", 16.0)


def status_cost(run: RunDir):
    """Seconds and peak MiB of one `status`, as its user waits for it; the best of three."""
    costs = []
    for _ in range(3):
        began = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-m", "prorl_cli", "status", str(run.root), "--json"], cwd=ROOT, stdout=subprocess.DEVNULL
        )
        _, code, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(code)
        assert child.returncode == 0
        costs.append((time.perf_counter() - began, usage.ru_maxrss / 1024))
    return min(costs)


def main(out):
    cluster = SlurmCluster()
    os.environ["SLURM_CONF"] = cluster.conf
    try:
        with tempfile.TemporaryDirectory(prefix="prorl-bench-") as folder:
            os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # every warm start is trained
            cells = [*embedded_cells(Path(folder) / "embedded"), *real_cells(Path(folder) / "real")]
    finally:
        cluster.close()
    Path(out).write_text(json.dumps(cells, indent=2) + "\n")
    print(f"{platform.node()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    for row in cells:
        bar = "" if row["bar"] is None else f"  bar {row['bar']}: {'met' if row['met'] else 'NOT MET'}"
        print(f"{row['cell']:<90} {row['ours']:>10.3f} {row['unit']}{bar}")


if __name__ == "__main__":
    main(sys.argv[1])
