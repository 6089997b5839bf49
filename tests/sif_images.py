"""The shipped definitions as images, built by `prorl cache build` without a network, once a machine, as its user."""

import hashlib
import json
import os
import shutil
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


def prorl_cache(*words, cwd=None):
    """`prorl cache …` on that cache, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parent.parent), "PRORL_CACHE": str(CACHE)}
    command = [sys.executable, "-m", "prorl_cli", "cache", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def build(name, *more, definition=None, base=None):
    """What `prorl cache build --json` says of the image."""
    words = [definition or name, "--base", base or bases(name) / name, *more, "--json"]
    if name in ("math", "stem"):
        words += ["--build-arg", f"wheels={BASES / 'wheels'}"]
    ended = prorl_cache("build", *words)
    assert ended.returncode == 0, ended.stderr + ended.stdout + _log(ended.stdout)
    return json.loads(ended.stdout)[0]


def _log(said):
    error = json.loads(said)[0].get("error", "") if said else ""
    log = Path(error.partition("its log is ")[2].strip() or os.devnull)
    return "\n".join(log.read_text(errors="replace").splitlines()[-40:])


def oci_archive(root, file, environment):
    """A root folder as the archive of an OCI image with those variables, as other people's base images have some."""
    layout = file.parent / f"{file.stem}.layout"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = layout / "layer.tar"
    subprocess.run(["tar", "-C", root, "-cf", layer, "--owner=0", "--group=0", "."], check=True)
    packed = _blob(blobs, layer.read_bytes(), "application/vnd.oci.image.layer.v1.tar")
    layer.unlink()
    config = {
        "architecture": "arm64" if os.uname().machine == "aarch64" else "amd64", "os": "linux",
        "config": {"Env": [f"{name}={value}" for name, value in environment.items()]},
        "rootfs": {"type": "layers", "diff_ids": [packed["digest"]]},
    }  # fmt: skip
    described = _blob(blobs, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": [packed]}
    index = {"schemaVersion": 2, "manifests": [_blob(blobs, json.dumps(manifest).encode(), kind)]}
    (layout / "index.json").write_text(json.dumps(index))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    subprocess.run(["tar", "-C", layout, "-cf", file, "oci-layout", "index.json", "blobs"], check=True)
    shutil.rmtree(layout)
    return file


def _blob(folder, data, kind):
    name = hashlib.sha256(data).hexdigest()
    (folder / name).write_bytes(data)
    return {"mediaType": kind, "digest": f"sha256:{name}", "size": len(data)}
