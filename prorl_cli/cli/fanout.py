"""Work that is one plain job of its own, not a part of the run's job: a function call, carried to a node by submitit.

submitit would inherit whatever a user's shell sets for Slurm, and learns of a job's death from accounting alone, so
both are done here: a scrubbed environment, and the states that `slurm.state` knows. Called by `eval --slurm` and
`cache build --slurm`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prorl_cli.errors import ProrlError, Unfinished, UserError
from prorl_cli.recipe.schema import Cluster, Component
from prorl_cli.slurm.environment import scrubbed
from prorl_cli.slurm.grammar import gpu_directive, memory_text, time_text
from prorl_cli.slurm.state import job_state

if TYPE_CHECKING:
    import submitit

R = TypeVar("R")

ASK_S = 10.0
"""Between two questions to the controller."""

LOOKS = 3
"""A job that is unknown this often is gone."""


def call_on_a_node(
    folder: Path, name: str, cluster: Cluster, asked: Component, call: Callable[..., R], *arguments: Any
) -> R:  # fmt: skip
    """The result of `call(*arguments)` on one node as `asked`; `folder` must be seen by all nodes."""
    return awaited(submitted(folder, name, cluster, asked, call, *arguments))


def submitted(
    folder: Path, name: str, cluster: Cluster, asked: Component, call: Callable[..., R], *arguments: Any
) -> submitit.Job[R]:  # fmt: skip
    """A job in the queue, whose result `awaited` waits for. One at a time: it changes this process's environment."""
    import submitit

    with _environment(scrubbed()):
        try:
            executor = submitit.SlurmExecutor(folder=folder)
            executor.update_parameters(**parameters(name, cluster, asked))
            return executor.submit(call, *arguments)
        except (RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f"Slurm took no job: {error}") from error


def parameters(name: str, cluster: Cluster, asked: Component) -> dict[str, Any]:
    """What the recipe says of one node, in submitit's words; options that it has no word for are handed through."""
    if not cluster.time:
        raise UserError("--slurm needs a time limit for the job: add --set cluster.time=2h")
    options = {
        "partition": asked.partition, "account": asked.account or cluster.account, "qos": asked.qos or cluster.qos,
        "reservation": asked.reservation, "constraint": asked.constraint,
        "mem": memory_text(asked.memory) if asked.memory else "", "time": time_text(cluster.time),
    }  # fmt: skip
    if asked.gpus:
        key, value = gpu_directive(cluster, asked)
        options[key] = value
    return {
        "job_name": name, "nodes": 1, "ntasks_per_node": 1, "stderr_to_stdout": True, "use_srun": False,
        "setup": cluster.setup.splitlines(), **({"cpus_per_task": asked.cpus} if asked.cpus else {}),
        "additional_parameters": {key: value for key, value in options.items() if value},
    }  # fmt: skip


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def awaited(job: submitit.Job[R], tell: Callable[[str], None] = lambda state: None) -> R:
    """Its result; `tell` hears its state now and then."""
    unknown, ask = 0, time.monotonic() + ASK_S
    while not job.paths.result_pickle.exists():
        if time.monotonic() > ask:
            ask = time.monotonic() + ASK_S
            state = job_state(int(job.job_id))
            tell(state.state)
            unknown = unknown + 1 if state.over or not state.known else 0
            if unknown >= LOOKS:
                raise Unfinished(f"job {job.job_id} ended without a result ({state.state}): see {job.paths.stdout}")
        os.listdir(job.paths.folder)  # an opened folder is looked at afresh, where `exists` may be a memory
        time.sleep(0.5)
    import submitit

    try:
        return job.result()
    except submitit.core.utils.FailedJobError as error:
        raise ProrlError(f"job {job.job_id} failed, its log is {job.paths.stdout}: {error}") from error
