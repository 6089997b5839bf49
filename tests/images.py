"""The container image of the tests, a SIF file and a folder with the same in it: made once a machine, as its user."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / ".ci" / "build-test-image"
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prorl-test-images"
FORMS = {"sif": "minimal.sif", "folder": "minimal"}


@cache
def apptainer_works():
    """Rootless is what users have: root of a machine may lack what its users are given."""
    return os.geteuid() != 0 and bool(shutil.which("apptainer")) and os.access("/dev/fuse", os.R_OK | os.W_OK)


@cache
def image(form="folder"):
    """Its path; Debian with a Python that lacks half of its standard library, and nothing of prorl's."""
    made = subprocess.run([SCRIPT, FOLDER], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return FOLDER / FORMS[form]
