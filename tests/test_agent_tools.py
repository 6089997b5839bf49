"""Which calls never reach a box, and in which words the policy is told."""

import pytest

from prorl_cli.agent.tools import TOOLS, argument_mistake, tool_named
from prorl_cli.errors import UserError


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("calculator", {}, "calculator needs expression"),
        ("calculator", {"expression": "1", "base": "2"}, "calculator takes expression, not 'base'"),
        ("calculator", {"expression": 3}, "calculator: expression must be of type string"),
        ("bash", {"command": "ls", "restart": "yes"}, "bash: restart must be of type boolean"),
        ("edit", {"command": "delete", "path": "a"}, "edit: command must be one of view, create, str_replace"),
        ("edit", {"command": "view", "path": "a", "view_range": [True, 2]}, "must hold values of type integer"),
        ("edit", {"command": "insert", "path": "a", "insert_line": True}, "edit: insert_line must be of type integer"),
        (
            "edit",
            {"command": "view", "path": "a", "view_range": [1, "2"]},
            "view_range must hold values of type integer",
        ),
    ],
)
def test_arguments_that_a_tool_does_not_take_are_named(tool, arguments, words):
    assert words in argument_mistake(TOOLS[tool], arguments)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("calculator", {"expression": "1 + 1"}), ("bash", {"command": "ls"}), ("bash", {"restart": True}),
        ("python", {"code": "1"}), ("edit", {"command": "view", "path": "a", "view_range": [1, -1]}),
    ],
)  # fmt: skip
def test_arguments_that_it_takes_pass(tool, arguments):
    assert argument_mistake(TOOLS[tool], arguments) == ""


def test_a_recipe_cannot_ask_for_a_tool_that_no_box_serves():
    with pytest.raises(UserError, match="there is no tool 'browser' in this version"):
        tool_named("browser")
