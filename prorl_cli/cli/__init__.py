"""The command line: a command parses, calls one function, prints. Heavy libraries load only where they work."""

from __future__ import annotations

import codecs
import io
import os
import sys


def main() -> None:
    """Entry point of `prorl`: any `ProrlError` becomes its message and its exit code."""
    from prorl_cli.cli.app import app
    from prorl_cli.errors import ProrlError

    _speak_unicode()
    # numpy's library starts a thread a core when it loads, more than many login nodes allow a user.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        app()
    except ProrlError as error:
        if os.environ.get("PRORL_DEBUG"):
            raise
        _print_error(str(error))
        sys.exit(error.exit_code)


def _speak_unicode() -> None:
    """A locale of C says nothing of the terminal, which understands UTF-8; others lose what they cannot show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            plain = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if plain else stream.encoding, errors="replace")


def _print_error(text: str) -> None:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}prorl: {text}{plain}", file=sys.stderr)
