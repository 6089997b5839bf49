"""A run on the test cluster: its recipe, what its jobs are, and what may be left of it."""

import json
import os
from pathlib import Path

import psutil

from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import current_attempt, read_outcome
from tests.quick_run import COIN, RECIPE, processes_of, prorl, until

HETJOB = """\
cluster:
  executor: slurm
  topology: hetjob
  time: 30m
  drain: 20s
  restarts: 1000
  rollout: {nodes: 2, partition: cpu, cpus: 2}
  engine: {partition: gpu, cpus: 2, gpus: 1}
  learner: {partition: gpu, cpus: 2, gpus: 1}
"""

SATELLITES = """\
cluster:
  executor: slurm
  topology: satellites
  time: 30m
  drain: 20s
  restarts: 1000
  control: {partition: cpu, cpus: 2}
  rollout: {nodes: 2, partition: cpu, cpus: 6}
  engine: {partition: gpu, cpus: 2, gpus: 1}
  learner: {partition: gpu, cpus: 2, gpus: 1}
"""
"""No two satellites fit one node of eight cores."""

SINGLE = """\
cluster:
  executor: slurm
  topology: single
  time: 30m
  drain: 20s
  restarts: 1000
  rollout: {nodes: 2}
  learner: {partition: all, cpus: 2}
"""


def write_recipe(folder: Path, cluster: str, *, steps, seed=1):
    """The minimal model and the coin of `quick_run`, on Slurm. Nothing is late for want of a node that is away."""
    (folder / "coin.py").write_text(COIN)
    text = RECIPE.format(seed=seed, steps=steps, workers=1, evaluated=0).replace("deadline: 60s", "deadline: 20m")
    path = folder / "quick.yaml"
    path.write_text("".join(line for line in text.splitlines(True) if not line.startswith("cluster:")) + cluster)
    return path


def launch(folder: Path, recipe, *arguments, name="run") -> RunDir:
    """Submitted, not awaited."""
    done = prorl(folder, "launch", recipe, "--run-dir", name, *arguments, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(folder / name)


def resume(folder: Path, *arguments, name="run"):
    done = prorl(folder, "resume", name, *arguments, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def submitted(run: RunDir) -> list[int]:
    """The ids of every job that was submitted for this run, oldest first."""
    found = [json.loads(path.read_text()) for path in run.jobs.glob("submitted-*/job.json")]
    return [int(job["job_id"]) for job in sorted(found, key=lambda job: job["submitted_at"])]


def attempt(run: RunDir) -> int:
    return current_attempt(run)


def step(run: RunDir) -> int:
    return max(run.weight_folders(), default=0)


def wait(run: RunDir, condition, seconds, what):
    """`until`, which shows the logs where it gives up."""
    try:
        return until(condition, seconds, what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{last_words(run)}") from None


def wait_steps(run: RunDir, more: int, seconds=300):
    """Until `more` further steps were trained."""
    wanted = step(run) + more
    wait(run, lambda: step(run) >= wanted, seconds, f"step {wanted}")


def wait_done(cluster, run: RunDir, seconds=400) -> str:
    """The state that the newest attempt ended in, once no job is left."""
    wait(run, lambda: read_outcome(run, attempt(run)), seconds, "the outcome")
    wait(run, lambda: not cluster.jobs(), 60, "the end of the run's jobs")
    return read_outcome(run, attempt(run)).state


def last_words(run: RunDir) -> str:
    """The ends of all logs, for a failed test's message."""
    logs = sorted(run.logs.rglob("*.log"))
    return "\n".join(f"--- {log.relative_to(run.logs)}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


class Traces:
    """What a node shows of a run: taken before it and compared after it, since all nodes are this host. Whatever else
    this user does meanwhile shows too: run these tests alone."""

    NODE = Path(f"/tmp/prorl-{os.getuid()}")
    FOLDERS = (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"), NODE)
    USERS = (NODE, NODE / "images", Path(f"/tmp/torchinductor_{psutil.Process().username()}"))
    """Kept for whatever this user runs next."""

    def __init__(self):
        self.mounts, self.files = mounts(), self._files()

    def _files(self):
        found = {path for folder in self.FOLDERS if folder.exists() for path in folder.iterdir()}
        return {path for path in found if path not in self.USERS and owned(path)}

    def left(self, folder: Path):
        """Processes, mounts and temporary files that are there now and were not before."""
        return [
            *(f"process {process.pid}: {' '.join(command(process))}" for process in processes_of(folder)),
            *(f"mount {point}" for point in sorted(mounts() - self.mounts)),
            *(f"file {path}" for path in sorted(self._files() - self.files)),
        ]


def owned(path: Path):
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def mounts():
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def command(process: psutil.Process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return ["(gone)"]
