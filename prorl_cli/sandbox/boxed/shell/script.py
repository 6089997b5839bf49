"""The words spoken with bash: what it learns at its start, the lines of one command, the records that come back; pure.

A command's text is never part of a line: it is in a file that is sourced at top level, so that `declare`, `return`,
unbalanced quotes and here-documents of any size mean what they mean in a file. Only where no file can be written
(a full disk) it travels as one quoted word. Every line survives the options that a policy may set: no expansion
without a default, no status that `set -e` would mind. There is no prompt: a `PROMPT_COMMAND` could only read these
lines before the shell does, and is dropped. Called by `session` and `process`.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

OUTPUT = 99
"""The shell's descriptor of the pipe; closed in commands, whose standard output it is."""

MAX_INLINE = 8 * 1024
"""Characters of a command that fit into a line, escaped: a socket takes two hundred thousand bytes unread."""

_BOOT = r"""set +H +o history; unset HISTFILE MAILCHECK
__prorl_begin() { if { builtin : >&OUTPUT; } 2>/dev/null; then builtin printf '%s begun \0' "$1" >&0
else builtin printf '%s blind \0' "$1" >&0; fi; return "$2"; }
__prorl_done() { builtin printf '%s done %s %s\0' "$1" "$2" "${PWD-}" >&0; builtin unset -v PROMPT_COMMAND; }
__prorl_save() { { builtin printf 'builtin cd -- %q\n' "${PWD-}"; builtin declare -p; builtin umask -p
builtin trap -p; builtin shopt -p; builtin set +o; builtin echo 'set +e +t'; builtin declare -f; builtin declare -F
builtin alias -p; builtin echo '# whole'; } >| "$1"; } 2>/dev/null
""".replace("OUTPUT", str(OUTPUT))

WHOLE = b"\n# whole\n"
"""How a state file ends that was written to its end."""


class Record(NamedTuple):
    """What the shell said of a command: `begun`, `blind` (it has lost the pipe and runs nothing), or `done`."""

    nonce: str
    word: str
    exit_code: int = 0
    folder: str = ""


def boot(folder: str, state: str | None, at_exit: str) -> str:
    """First lines of a shell: go to `folder`, take over what the file `state` holds, leave one such file `at_exit`.

    `set -e` and `set -t` are not taken over: they are why a shell ended, and would end the next one. Options come
    before functions, functions before aliases, since each changes what is read after it.
    """
    lines = [f"{_BOOT}builtin cd -- {shlex.quote(folder)}"]
    if state:
        lines.append(f"builtin . {shlex.quote(state)} </dev/null >/dev/null 2>&1")
    save = f"{{ __prorl_save {shlex.quote(at_exit)}; }} 2>/dev/null"
    lines.append(f"\\builtin trap -- {shlex.quote(save)} EXIT")
    return "\n".join(lines) + "\n"


def sourced(path: str) -> str:
    """Runs the command in a file."""
    return f"\\builtin . {shlex.quote(path)}"


def inline(command: str) -> str:
    """Runs a command that could not be written to a file; a long one is refused in its place."""
    if len(command) > MAX_INLINE:
        return "{ \\builtin echo 'bash: there is no space left for so long a command' >&2; \\builtin false; }"
    return "\\builtin eval -- $'" + "".join(map(_escaped, command)) + "'"


def _escaped(character: str) -> str:
    if character.isalnum() and character.isascii():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode(errors="replace"))


def lines(nonce: str, run: str, before: int, save: str | None) -> str:
    """One command; `before` is the exit code of the one before it, which it sees as `$?`.

    An interrupt or a fatal expansion drops the rest of the first line, so the second says once more that it is done.
    """
    then = "||" if before else "&&"
    pipes = f"</dev/null >&{OUTPUT} 2>&1 {OUTPUT}>&-"
    done = f'__prorl_done {nonce} "$?" || \\builtin :'
    saved = f"; __prorl_save {shlex.quote(save)} || \\builtin :" if save else ""
    return f"__prorl_begin {nonce} {before} {then} {run} {pipes}; {done}\n{done}{saved}\n"


def read_record(body: bytes) -> Record | None:
    """One record without its final NUL; None for anything else."""
    nonce, _, rest = body.decode(errors="surrogateescape").partition(" ")
    word, _, rest = rest.partition(" ")
    if word in ("begun", "blind"):
        return Record(nonce=nonce, word=word)
    code, _, folder = rest.partition(" ")
    if word != "done" or not code.isdigit():
        return None
    return Record(nonce=nonce, word=word, exit_code=int(code), folder=folder)
