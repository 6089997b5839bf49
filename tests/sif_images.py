"""The shipped definitions as images, built by `prorl cache build` without a network, once a machine, as its user."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.images import FOLDER

SCRIPT = Path(__file__).parent.parent / ".ci" / "build-sif-bases"
NAMES = ("math", "code", "stem", "swe")
BASES = FOLDER / "bases"
CACHE = FOLDER / "cache"
"""Kept from run to run; what changed since is built anew, for the key covers it."""


@cache
def bases(*names):
    """FOLDER/NAME is the root for a definition, FOLDER/wheels what pip needs."""
    made = subprocess.run([SCRIPT, BASES, sys.executable, *names], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return BASES


def build(name, *more, definition=None):
    """What `prorl cache build --json` says of the image."""
    words = [definition or name, "--base", str(bases(name) / name), *more, "--json"]
    if name in ("math", "stem"):
        words += ["--build-arg", f"wheels={BASES / 'wheels'}"]
    command = [sys.executable, "-m", "prorl_cli", "cache", "build", *map(str, words)]
    ended = subprocess.run(command, env={**os.environ, "PRORL_CACHE": str(CACHE)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr + ended.stdout + _log(ended.stdout)
    return json.loads(ended.stdout)[0]


def _log(said):
    error = json.loads(said)[0].get("error", "") if said else ""
    log = Path(error.partition("its log is ")[2].strip() or os.devnull)
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])
