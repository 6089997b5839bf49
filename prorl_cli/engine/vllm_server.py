"""One vLLM server as a child: its command line and environment (pure), its start, and an end that leaves nothing.

The server listens with the run's certificate behind our gate. No secret is in its command line or its environment: the
gate reads a file that only this user can. Called by `vllm`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec
import psutil

from prorl_cli.engine.gate import MODEL_NAME, SETTINGS, GateSettings
from prorl_cli.engine.keeper import KEEPER
from prorl_cli.errors import UserError
from prorl_cli.recipe.schema import Engine
from prorl_cli.wire.address import family, in_url
from prorl_cli.wire.server import KEEP_ALIVE_S

MODULE = "vllm.entrypoints.openai.api_server"
"""Works in every build; the `vllm` command of some does not."""

GATE = "prorl_cli.engine.gate.Gate"

SHARED_MEMORY = ("/dev/shm/psm_", "/dev/shm/sem.mp-")
"""Where Python keeps shared memory and semaphores by name."""

SHUTDOWN_S = 10
"""What the server itself gives open requests when a whole job is told to end."""

END_S = 10.0
"""Longest wait for the keeper to have ended everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where one server runs."""

    host: str
    port: int
    certificate: Path
    key: Path
    weights: Path
    """The folder that it loads before it listens."""
    scratch: Path
    """Private, for its sockets and temporary files."""
    max_model_len: int

    @property
    def url(self) -> str:
        return f"https://{in_url(self.host)}:{self.port}"

    @property
    def gate_file(self) -> Path:
        return self.scratch / "gate.json"


def require() -> None:
    """`UserError` where this environment has no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(f"engine.kind: vllm needs vLLM where {sys.executable} finds it: pip install vllm")


def built_for_cpus() -> bool:
    """Whether the vLLM that would be started computes on CPUs."""
    names = metadata.packages_distributions().get("vllm", ())
    return any("cpu" in name or "+cpu" in metadata.version(name) for name in names)


def command(engine: Engine, setting: Setting, *, on_cpus: bool = False) -> list[str]:
    """The argv. The site's own options come first, so that none can undo what the run relies on."""
    options = {
        "--model": setting.weights,
        "--served-model-name": MODEL_NAME,
        "--host": setting.host,
        "--port": setting.port,
        "--ssl-certfile": setting.certificate,
        "--ssl-keyfile": setting.key,
        "--middleware": GATE,
        "--dtype": engine.dtype,
        "--tensor-parallel-size": engine.tensor_parallel,
        "--max-model-len": setting.max_model_len,
        "--max-num-seqs": engine.slots,
        # The recipe's sampling and nothing else; logprobs of the distribution that was sampled from.
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        # A canary passes by the requests that wait.
        "--scheduling-policy": "priority",
        "--shutdown-timeout": SHUTDOWN_S,
    }
    flags = ["--enable-scale-out", "--skip-tokenizer-init", "--disable-uvicorn-access-log"]
    if engine.enforce_eager:
        flags.append("--enforce-eager")
    if on_cpus:
        # vLLM 0.32 on CPUs dies of a seeded request whose prompt does not fit one batch with the others.
        flags.append("--no-enable-chunked-prefill")
    words = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, "-m", MODULE, *engine.vllm_args, *words, *flags]


def environment(setting: Setting, inherited: Mapping[str, str]) -> dict[str, str]:
    """Offline, no usage reports, with the endpoints that a swap needs; what it makes by itself goes into `scratch`."""
    return {
        # At the end it would say three times that nothing is left to remove, after the words that matter.
        "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
        **inherited,
        SETTINGS: str(setting.gate_file),
        "TMPDIR": str(setting.scratch),
        "VLLM_RPC_BASE_PATH": str(setting.scratch),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S),
        # Its own parts meet on the loopback: none of those sockets asks for a token.
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def reserve(host: str) -> socket.socket:
    """A free port, kept from everybody but a server that says SO_REUSEADDR, as vLLM does, until it is closed."""
    held = socket.socket(family(host))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held


def write_gate(setting: Setting, gate: GateSettings) -> None:
    """What the gate reads when the server starts."""
    descriptor = os.open(setting.gate_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(gate))


class VllmProcess:
    """The server and everything that it starts, under a keeper."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, engine: Engine, setting: Setting) -> VllmProcess:
        """Returns at once; its words go where this process's go."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", KEEPER, str(setting.scratch),
            *command(engine, setting, on_cpus=built_for_cpus()),
            stdin=asyncio.subprocess.PIPE, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True,
            env=environment(setting, os.environ),
        )  # fmt: skip
        return cls(process)

    def forget_shared_memory(self) -> None:
        """Take the names off the memory that its processes share, now that all of them have it: it then ends with them,
        even where everything is killed at once."""
        with suppress(OSError, psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                words = Path(f"/proc/{process.pid}/maps").read_text().split()
                for name in {word for word in words if word.startswith(SHARED_MEMORY)}:
                    Path(name).unlink(missing_ok=True)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return await self._process.wait()

    async def end(self) -> None:
        """Everything of it is gone on return. What is in flight is lost: drain first."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            pass
        try:
            # Where the keeper itself was killed; the group outlives its leader.
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
