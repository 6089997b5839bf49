"""A whole run in seconds, for tests: a minimal model, a handler whose reward is a coin, steps of a few episodes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import current_attempt, live, read_endpoints, read_obituaries

ROOT = Path(__file__).parent.parent

COIN = '''
"""A handler that rewards by the answer's own bytes, so that every group has a signal whatever the policy writes."""

import zlib

from prorl_cli.tasks import QuestionAnswer, Score


class Coin(QuestionAnswer):
    async def eval(self, job, episode):
        ids = episode.sequences[-1].token_ids if episode.sequences else b""
        return Score(reward=float(zlib.crc32(ids) % 2), parts={})
'''

RECIPE = """\
name: quick
seed: {seed}
model: builtin:tiny
tasks:
  - {{domain: math, source: "reasoning_gym:chain_sum", handler: "coin:Coin", options: {{min_terms: 2, max_terms: 2, max_digits: 1}}}}
agent: {{renderer: tiny, max_turns: 2, max_tokens: 112}}
rollout: {{group_size: 2, groups_per_step: 2, max_resample: 20, retries: 5, deadline: 60s, run: {{timeout: 60s}}}}
engine: {{max_model_len: 112}}
learner: {{steps: {steps}, lr: 1.0e-4}}
eval: {{n: {evaluated}}}
checkpoint: {{every: 4, keep: 2}}
warmstart: {{steps: 2, batch: 8, hidden: 32, layers: 1}}
cluster: {{restarts: 1000, rollout: {{nodes: {workers}}}}}
"""


def write_recipe(folder, *, steps, workers=1, seed=1, evaluated=0):
    (folder / "coin.py").write_text(COIN)
    path = folder / "quick.yaml"
    path.write_text(RECIPE.format(seed=seed, steps=steps, workers=workers, evaluated=evaluated))
    return path


def environment(folder):
    """Of a `prorl` process: our checkout, the coin, a cache and a state folder of its own."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_STATE_HOME": str(folder / "state"),
        "OMP_NUM_THREADS": "1",
    }


def prorl(folder, *arguments, **options):
    """`prorl …` to its end."""
    command = [sys.executable, "-m", "prorl_cli", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, **options)


def start_prorl(folder, *arguments):
    """`prorl …` in the background; its output goes to a file."""
    log = (folder / "prorl.log").open("ab")
    with log:
        command = [sys.executable, "-m", "prorl_cli", *map(str, arguments)]
        return subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=log, stderr=log)


def status(folder, run):
    return json.loads(prorl(folder, "status", run, "--json", check=True).stdout)


def live_roles(run: RunDir):
    """Role → processes of the newest attempt that are alive now."""
    found = {}
    for peer in live(read_endpoints(run), read_obituaries(run), current_attempt(run)):
        if is_process(peer.pid, peer.pid_started):
            found.setdefault(peer.role, []).append(peer)
    return found


def is_process(pid, started):
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_of(folder):
    """Processes started by `prorl` below `folder`, boxes and verifiers included: they share its environment or name it."""
    return [process for process in psutil.process_iter() if _belongs(process, str(folder))]


def _belongs(process, folder):
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        words = [*process.cmdline(), process.environ().get("XDG_CACHE_HOME", "")]
        return any(folder in word for word in words)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.05)
    return found
