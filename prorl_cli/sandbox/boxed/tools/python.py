"""Tool `python {"code": str}`: a cell of Python in a session that keeps its variables, imports and folder.

The answer is what the cell prints and the value of its last expression. Refuses other arguments, in words.
"""

from __future__ import annotations

from prorl_cli.sandbox.boxed.calls import Session, Setting
from prorl_cli.sandbox.boxed.interpreter.session import PythonSession


def open_session(setting: Setting) -> Session:
    """A session without an interpreter; its first call starts one."""
    return PythonSession(setting)
