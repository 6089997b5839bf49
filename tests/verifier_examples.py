"""Verifiers that a user might write, good and bad; called by import path in a verifier process."""

import os
import signal
import subprocess
import sys
import time


def length(given):
    """A good one, chatty on every stream."""
    print("scoring", given)
    sys.stderr.write("scoring\n")
    os.write(1, b'{"value": 99}\n')
    assert sys.stdin.read() == ""
    return len(given)


def pid():
    return os.getpid()


def returned(value):
    return value


def raising(kind):
    raise {"value": ValueError("bad luck"), "exit": SystemExit(3)}[kind]


def hanging(mark):
    with open(mark, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)


def hanging_deaf(mark):
    """Hangs, deaf to signals, in a grandchild too."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(mark + ".child", "w") as file:
        file.write(str(child.pid))
    hanging(mark)


def dying():
    os._exit(7)
