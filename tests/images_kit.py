"""A cache to test with, definitions for it, and `fake`, a program that plays Apptainer."""

import os
import sys
from pathlib import Path

import pytest

from prorl_cli.images import Store, read_definition
from prorl_cli.images.program import Program
from prorl_cli.sandbox.flavour import Flavour
from tests import fake_apptainer

DEF = """\
Bootstrap: localimage
From: {{ base }}

%arguments
    base=base
    number=1

%files
    input.txt /opt/input.txt

%post
    echo {{ number }}

%labels
    version {{ number }}
"""


def make_definition(folder, name="fake", text=DEF, **arguments):
    """A definition with a base folder and an input beside it."""
    return read_definition(write_definition(folder, name, text), arguments)


def write_definition(folder, name, text):
    """Its path, not read yet."""
    (folder / "base" / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "base" / "bin" / "sh").write_text("a shell")
    (folder / "input.txt").write_text("an input")
    (folder / f"{name}.def").write_text(text)
    return folder / f"{name}.def"


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """The program; its builds happen below `scratch`."""
    script = tmp_path / "apptainer"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -B {fake_apptainer.__file__} "$@"\n')
    script.chmod(0o755)
    for name in ("begun", "scratch"):
        Path(tmp_path, name).mkdir()
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "begun"))
    monkeypatch.setenv("APPTAINER_TMPDIR", str(tmp_path / "scratch"))
    return Program(path=str(script), flavour=Flavour(name="apptainer", version=(1, 4, 5)))


def begun(tmp_path):
    """How many builds were begun."""
    return len(os.listdir(tmp_path / "begun"))


def store_of(tmp_path, grace_s=6.0):
    """With a patience that suits a busy machine."""
    return Store(tmp_path / "cache", grace_s=grace_s)
