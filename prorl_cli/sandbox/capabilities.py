"""What each runtime promises of its boxes: one row a runtime, read by the code, the tests and the README.

Refuses, in words for the user, tools that a runtime gives no walls for and images that it cannot take. Pure; called
by `factory`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from prorl_cli.errors import UserError
from prorl_cli.recipe import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Promises that hold wherever the runtime works at all.

    `clean`: nothing of the host's environment. `limits`: those that end in an outcome of their own. `processes`: own
    process list, and none outlives the box. `files`: nothing of the host's files but what Python or a shell needs, and
    those read-only; what is written is bounded, and gone with the box. `no_network`; `no_power`: none to gain by any
    program in it. `unkillable`: the policy cannot end the process that serves the box. `images`: forms of them that it
    takes. `alike`: a box can begin with what another has written, where the node lets boxes write to its disk.
    """

    clean: bool = True
    limits: tuple[str, ...] = ("cpu", "memory", "processes", "disk")
    processes: bool
    files: bool
    no_network: bool
    no_power: bool
    unkillable: bool
    images: tuple[str, ...]
    alike: bool

    @property
    def walls(self) -> bool:
        """Whether tools that can do anything may run there unasked."""
        return self.processes and self.files and self.no_network and self.no_power and self.unkillable


RUNTIMES = {
    "apptainer": Capabilities(
        processes=True,
        files=True,
        no_network=True,
        no_power=True,
        unkillable=True,
        images=("sif", "folder"),
        alike=True,
    ),
    "bwrap": Capabilities(
        processes=True, files=True, no_network=True, no_power=True, unkillable=True, images=("folder",), alike=True
    ),
    "process": Capabilities(
        processes=False, files=False, no_network=False, no_power=False, unkillable=False, images=(), alike=False
    ),
}


def check(runtime: str, sandbox: Sandbox, serve: Collection[str]) -> None:
    """Raises `UserError` where boxes of `runtime` may not serve these tools."""
    mighty = sandbox.need_walls(serve)
    if mighty and not RUNTIMES[runtime].walls:
        raise UserError(
            f"sandbox.runtime: boxes would run as {runtime}, which has no walls, and {', '.join(mighty)} can do "
            "anything there: make bwrap or apptainer work (`prorl doctor` says how), or say `sandbox.unsafe: true`"
        )
