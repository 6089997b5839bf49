"""Tool `edit {"command", "path", …}`: views, creates and changes text files, and undoes its changes (`editing`).

Refuses in words what is no text file, and an edit that does not say exactly where.
"""

from __future__ import annotations

from prorl_cli.sandbox.boxed.calls import Session, Setting
from prorl_cli.sandbox.boxed.editing.session import EditSession


def open_session(setting: Setting) -> Session:
    """A session with nothing to undo yet."""
    return EditSession(setting)
