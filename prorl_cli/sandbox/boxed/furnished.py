"""The first process of a box that was launched from an image: walls itself in once more, then serves.

The runtime has given it the image, its own process list and no network; a user namespace within bounds what it may
write in memory, hides the folders that no tool should see, and takes the power to make further ones. Refuses to
serve without these. Started by the runtime with prorl's own interpreter, for an image need not have one.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import NoReturn

from prorl_cli.sandbox.boxed import inside, isolation
from prorl_cli.sandbox.boxed.tools import OnDemand
from prorl_cli.sandbox.boxed.watch import Limits

KINDS = isolation.CLONE_NEWUSER | isolation.CLONE_NEWNS | isolation.CLONE_NEWUTS | isolation.CLONE_NEWCGROUP
_RUNTIMES_OWN = ("APPTAINER", "SINGULARITY", "LD_", "PS1", "PROMPT_COMMAND", "PWD", "OLDPWD", "USER", "LOGNAME")


def main() -> NoReturn:
    """`python -c BOOT FOLDER CONFIGURATION`, with the zygote's hand as standard input."""
    refuse_without_walls()
    config = json.loads(sys.argv[2])
    hand = socket.socket(fileno=os.dup(0))
    limits = Limits(**config["limits"])
    tools = OnDemand(config["serve"], config["tools"])
    keep_images_environment()
    written = [os.open(f"{config['layer']}/upper", os.O_PATH | os.O_DIRECTORY)] if config["layer"] else []
    isolation.enter_namespaces(KINDS, os.geteuid(), os.getegid())
    private = f"{config['own']}/private"
    isolation.refurnish(limits.memory, config["own"], private, config["hidden"])
    home = _home()
    isolation.settle(home)
    isolation.limit_processes(limits.processes)
    isolation.drop_capabilities()
    isolation.die_with_parent(0)  # the launcher is in another process list
    hand.send(b".")
    inside.serve(hand, tools, limits, home, private, written)


def _home() -> str:
    """A folder of its own, where the image lets this user have one."""
    try:
        os.makedirs(isolation.HOME, exist_ok=True)  # noqa: PTH103 - see `boxed.tools`
    except OSError:
        return "/tmp"
    os.environ["HOME"] = isolation.HOME
    return isolation.HOME


def keep_images_environment() -> None:
    """Forget what the runtime has added to it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_RUNTIMES_OWN)}
    isolation.forget_environment()
    os.environ.clear()
    os.environ.update(kept | {"HOME": "/tmp", "TMPDIR": "/tmp"})


def refuse_without_walls() -> None:
    """Sites can forbid some in the runtime's configuration, and the flags that ask for them are then ignored."""
    if os.getpid() != 1:
        sys.exit("the runtime gave no process list of its own (`allow pid ns = no`?)")
    if (interfaces := {name for _, name in socket.if_nameindex()}) - {"lo"}:
        sys.exit(f"the runtime left a network: {', '.join(sorted(interfaces))}")
