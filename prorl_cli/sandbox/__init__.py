"""Where tool calls run: a box per episode, from an image (Apptainer), behind bubblewrap, or a plain child process.

`open_boxes` gives a factory, the factory gives a `Box` on an episode's first call, the box answers `call`. A
policy's misbehaviour is an outcome of the result; `InfraError` (sandbox) means that the machine failed. Boxes are
isolated against accidents and an over-eager policy (same user, same kernel), and `process` boxes not even that.
"""

from prorl_cli.sandbox.box import Box
from prorl_cli.sandbox.factory import BoxFactory, open_boxes
from prorl_cli.sandbox.results import Death, ToolResult
from prorl_cli.sandbox.transfer import FileRefused

__all__ = ["Box", "BoxFactory", "Death", "FileRefused", "ToolResult", "open_boxes"]
