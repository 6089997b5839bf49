"""Tool `bash {"command": str}`: runs a command in a shell that keeps its directory, variables and functions.

The answer is what it prints, both streams as they come, and its exit code unless that is 0; `"restart": true` begins
with a new shell. Refuses other arguments, in words.
"""

from __future__ import annotations

from prorl_cli.sandbox.boxed.calls import Session, Setting
from prorl_cli.sandbox.boxed.shell.session import BashSession


def open_session(setting: Setting) -> Session:
    """A session without a shell; its first call starts one."""
    return BashSession(setting)
