"""What a run directory keeps of the world it started in: versions, machine, and the user's own handler code."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import socket
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil

from prorl_cli import __version__
from prorl_cli.recipe import Recipe
from prorl_cli.rundir import FORMAT, RunDir


def snapshot_code(run: RunDir, recipe: Recipe) -> None:
    """Copy the top-level package or module of every `handler:` that is not part of an installed distribution."""
    for name in {spec.handler.split(":")[0].split(".")[0] for spec in recipe.tasks if spec.handler}:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None or "site-packages" in Path(found.origin).parts:
            continue
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, run.code / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(origin, run.code / origin.name)


def provenance() -> dict[str, object]:
    """Versions, machine and command line, for `provenance.json`."""
    packages = ("torch", "transformers", "reasoning-gym", "tokenizers", "msgspec")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "format": FORMAT, "prorl": __version__, "python": sys.version, "packages": versions,
        "platform": platform.platform(), "host": socket.gethostname(), "cpus": psutil.cpu_count(),
        "argv": sys.argv, "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }  # fmt: skip
