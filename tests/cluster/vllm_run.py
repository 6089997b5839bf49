"""Engines of kind vllm as a run starts them, for tests of the real server; knows every process that one is made of."""

import asyncio
import importlib.util
import json
import time
from pathlib import Path

import psutil

from prorl_cli.engine import GenerateRequest, generate
from prorl_cli.engine.staging import PREFIX
from prorl_cli.spool.members import read_endpoints
from tests.conftest import need
from tests.run_parts import Processes, make_run

START_S = 500
"""Two servers on two cores, each importing torch three times."""

ENGINE = {
    "kind": "vllm", "slots": 6, "max_model_len": 400, "dtype": "float32", "enforce_eager": True,
    # The smallest blocks there are: a stale cache shows in prompts of this length.
    "vllm_args": ["--block-size=32", "--kv-cache-memory-bytes=64M"],
}  # fmt: skip


def vllm_run(root):
    need("vllm", importlib.util.find_spec("vllm") is not None)
    return make_run(root, engine=ENGINE, agent={"renderer": "tiny", "max_tokens": 400})


QUICK = {"TORCHDYNAMO_DISABLE": "1"}
"""The first request would compile a kernel for the sampler, for a minute or more on a busy machine."""


class Engine:
    """One engine's process and everything below it."""

    def __init__(self, processes):
        self.run = processes.run
        self.process = processes.start("-m", "prorl_cli.engine", VLLM_CPU_OMP_THREADS_BIND="nobind", **QUICK)
        self.sent = 0

    @property
    def endpoint(self):
        return next((one for one in read_endpoints(self.run) if one.pid == self.process.pid), None)

    @property
    def url(self):
        return self.endpoint.url

    @property
    def log(self):
        return self.process.log.read_text(errors="replace")

    async def until(self, condition, seconds=60):
        """Wait for a condition on the endpoint, while the process lives."""
        until = time.monotonic() + seconds
        while not ((found := self.endpoint) and condition(found)):
            assert self.process.poll() is None, self.log[-4000:]
            assert time.monotonic() < until, f"{found}\n{self.log[-4000:]}"
            await asyncio.sleep(0.05)

    async def ready(self, version):
        await self.until(lambda mine: mine.state == "ready" and mine.version == version, START_S)

    def family(self):
        """The role, its keeper, the server and what that started."""
        role = psutil.Process(self.process.pid)
        return [role, *role.children(recursive=True)]

    def keeper(self):
        return psutil.Process(self.process.pid).children()[0]

    def server(self):
        return self.keeper().children()[0]

    def scratch(self):
        return Path(self.keeper().cmdline()[3])

    async def ask(self, client, prompt, **changes):
        self.sent += 1
        fields = {"request_id": f"r{self.sent}", "max_tokens": 60, "seed": self.sent, **changes}
        return await generate(client, self.url, GenerateRequest(token_ids=list(prompt), **fields), 60)


def engines(root, count):
    """Started, not yet ready."""
    processes = Processes(vllm_run(root))
    return processes, [Engine(processes) for _ in range(count)]


def traces(family):
    """What these processes have on disk or in shared memory that must not outlive them."""
    found = {Path(process.environ()["TMPDIR"]) for process in family if PREFIX in process.environ().get("TMPDIR", "")}
    for process in family:
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        found |= {Path(word) for word in maps.split() if word.startswith("/dev/shm/")}
    return found


def gone(family, seconds=20):
    """Whether all of them are, in time."""
    _, alive = psutil.wait_procs(family, timeout=seconds)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def listening(family):
    """(address, port) of every TCP listener of these processes."""
    found = set()
    for process in family:
        found |= {
            (one.laddr.ip, one.laddr.port) for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN
        }
    return found


def words(process):
    """Everything of a process that another user of the machine could read, and its environment."""
    return json.dumps([process.cmdline(), process.environ()])
