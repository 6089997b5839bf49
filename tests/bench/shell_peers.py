"""Inside an image: other people's ways to keep a shell, a command at a time, as slow as they are without a network.

    shell_peers.py swe-rex
    shell_peers.py tmux COMMAND...        # what runs tmux

For every line of standard input, a JSON list of commands, one of output: the seconds that each of them took.
"""

import asyncio
import json
import subprocess
import sys
import time

POLL_S, CLEAR_S = 0.5, 0.1
"""What OpenHands waits between two looks at its pane, and after it has cleared it."""
MARK = "###PS1END###"


class SweRex:
    """Its `BashSession`, called in its own process; a user of it has an HTTP request a command besides."""

    def __init__(self):
        from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
        from swerex.runtime.local import BashSession

        self._action = BashAction
        self._session = BashSession(CreateBashSessionRequest())
        asyncio.run(self._session.start())

    def run(self, command):
        seen = asyncio.run(self._session.run(self._action(command=command, timeout=120)))
        assert seen.exit_code == 0, seen

    def close(self):
        asyncio.run(self._session.close())


class Pane:
    """A tmux pane: keys are sent to it, and its screen is read until one prompt more, a JSON object, stands there."""

    def __init__(self, *tmux):
        self._tmux = [*tmux, "-L", "peer"]
        self._ask("-f", "/dev/null", "new-session", "-d", "-x", "1000", "-y", "1000", "bash --norc --noprofile")
        self._ask("set-option", "-g", "history-limit", "10000")
        fields = '{\\"exit_code\\": %d, \\"working_dir\\": \\"%s\\", \\"py_interpreter_path\\": \\"%s\\"}'
        say = f'PS1=$(printf "\\n{fields}\\n{MARK}\\n " $? "$(pwd)" "$(which python3)")'
        self._keys(f"PROMPT_COMMAND='{say}'")
        self._until(1)
        self._clear()

    def run(self, command):
        before = self._screen().count(MARK)
        self._keys(command)
        screen = self._until(before + 1)
        facts = json.loads(screen.split(MARK)[-2].strip().splitlines()[-1])
        assert facts["exit_code"] == 0, screen
        self._clear()

    def close(self):
        self._ask("kill-server")

    def _until(self, prompts):
        while (screen := self._screen()).count(MARK) < prompts:
            time.sleep(POLL_S)
        return screen

    def _clear(self):
        self._ask("send-keys", "C-l")
        time.sleep(CLEAR_S)
        self._ask("clear-history")

    def _keys(self, text):
        self._ask("send-keys", "-l", text)
        self._ask("send-keys", "Enter")

    def _screen(self):
        return self._ask("capture-pane", "-J", "-p", "-S", "-")

    def _ask(self, *words):
        return subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True).stdout


def main(kind, *words):
    shell = SweRex() if kind == "swe-rex" else Pane(*words)
    for line in sys.stdin:
        seconds = []
        for command in json.loads(line):
            began = time.perf_counter()
            shell.run(command)
            seconds.append(time.perf_counter() - began)
        print(json.dumps(seconds), flush=True)
    shell.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
