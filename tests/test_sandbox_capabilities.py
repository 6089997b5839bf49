"""The table of what runtimes promise is one: README, recipe and factory say the same."""

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from prorl_cli.errors import UserError
from prorl_cli.recipe import ANYTHING, Sandbox
from prorl_cli.sandbox import open_boxes
from prorl_cli.sandbox.apptainer import ContainerEach, OneContainer
from prorl_cli.sandbox.capabilities import RUNTIMES, check
from prorl_cli.sandbox.runtimes import Bwrap, Process

README = Path(__file__).parent.parent / "README.md"

ROWS = {
    "clean environment": lambda row: row.clean,
    "limits of CPU, memory, processes, disk": lambda row: row.limits == ("cpu", "memory", "processes", "disk"),
    "own process list; nothing outlives the box": lambda row: row.processes,
    "files of the host hidden; what is written is bounded, and gone with the box": lambda row: row.files,
    "no network": lambda row: row.no_network,
    "no power to gain": lambda row: row.no_power,
    "the policy cannot end the process that serves it": lambda row: row.unkillable,
    "can begin with the files of another box": lambda row: row.alike,
}


def readme_table():
    lines = ["| | " + " | ".join(f"`{name}`" for name in RUNTIMES) + " |", "|---" * (len(RUNTIMES) + 1) + "|"]
    for words, holds in ROWS.items():
        lines.append(f"| {words} | " + " | ".join("yes" if holds(row) else "no" for row in RUNTIMES.values()) + " |")
    images = ["SIF, folder" if "sif" in row.images else "folder" if row.images else "no" for row in RUNTIMES.values()]
    return "\n".join([*lines, "| takes an image | " + " | ".join(images) + " |"])


def test_the_readme_says_what_the_table_says():
    assert readme_table() in README.read_text()


def test_every_runtime_that_a_recipe_may_name_has_a_row_and_a_way_to_be_started():
    named = set(get_args(Sandbox.model_fields["runtime"].annotation)) - {"auto"}
    assert named == set(RUNTIMES) == {way.name for way in (Bwrap, Process, OneContainer, ContainerEach)}


@pytest.mark.parametrize("tool", sorted(ANYTHING))
def test_tools_that_can_do_anything_are_refused_without_walls_unless_the_recipe_says_unsafe(tool):
    for runtime, row in RUNTIMES.items():
        check(runtime, Sandbox(runtime="process", unsafe=True), [tool])
        check(runtime, Sandbox(), ["calculator"])
        if row.walls:
            check(runtime, Sandbox(), [tool])
            continue
        with pytest.raises(UserError, match=rf"{runtime}, which has no walls, and {tool} .*sandbox.unsafe: true"):
            check(runtime, Sandbox(), [tool])


def test_auto_gives_no_shell_where_no_walls_can_be_had(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="boxes would run as process, which has no walls, and bash can do anything"):
        asyncio.run(open_boxes(Sandbox(), scratch=tmp_path, serve=["bash"]))
