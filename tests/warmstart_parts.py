"""Run directories and processes for the warm start's tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.run_parts import make_run

ROOT = Path(__file__).parent.parent

SMALL = {"steps": 6, "batch": 4, "hidden": 32, "layers": 1, "intermediate": 32}
TASKS = [{"domain": "buy", "source": "procedural:purchase"}]
"""Without reasoning-gym, which takes seconds to import."""


def run_of(root, **sections):
    return make_run(root, **{"tasks": TASKS, "warmstart": SMALL, **sections})


def environment(cache):
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}


def begin(run, cache, **options):
    """The warm start of a run as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "prorl_cli.warmstart", str(run.root)], env=environment(cache), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def finish(process):
    """Its exit code, stdout and stderr."""
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def entries(cache):
    """The cache's entries, unfinished ones left out."""
    folder = cache / "prorl" / "warmstart"
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".")) if folder.is_dir() else []
