"""What every test gets: a clean environment, and skips that name how to get the missing part."""

import ctypes
import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.hostile_kit", "tests.sandbox_kit", "tests.box_driver")

PR_GET_CHILD_SUBREAPER = 37

PARTS = {
    "bwrap": "bubblewrap (Debian: apt-get install bubblewrap)",
    "slurm": "Slurm's daemons and munge (Debian, as root: .ci/install-slurm)",
    "apptainer": "Apptainer for an unprivileged user (Debian 12, as root: .ci/install-apptainer)",
    "vllm": "vLLM, for CPUs or GPUs (`make test-cluster` installs it for CPUs)",
    "deepspeed": "DeepSpeed and a C++ compiler (`make test-cluster` installs the first; Debian: apt-get install g++)",
}

CLUSTER = Path(__file__).parent / "cluster"
"""Tests there need the parts above: only `make test-cluster` runs them."""

WHOLE_PROCESSES = frozenset(
    [
        "test_run",
        "test_run_ends",
        "test_cli",
        "test_cli_cache",
        "test_cli_jobs",
        "test_coordinator_process",
        "test_engine_keeper",
        "test_engine_process",
        "test_engine_server",
        "test_engine_swap",
        "test_engine_vllm_parts",
        "test_images_build",
        "test_images_store",
        "test_learner_kills",
        "test_learner_process",
        "test_packaging",
        "test_rollout_kills",
        "test_rollout_worker",
        "test_router_service",
        "test_report_boxes",
        "test_sandbox_alike",
        "test_sandbox_box",
        "test_sandbox_bugs",
        "test_sandbox_hostile",
        "test_sandbox_hostile_shell",
        "test_sandbox_edit",
        "test_sandbox_files",
        "test_sandbox_janitor",
        "test_sandbox_kill",
        "test_sandbox_limits",
        "test_sandbox_promises",
        "test_sandbox_python",
        "test_sandbox_roots",
        "test_sandbox_sessions",
        "test_sandbox_shared",
        "test_sandbox_walls",
        "test_slurm_local",
        "test_spool_kill",
        "test_spool_refused",
        "test_tasks_sources",
        "test_tasks_verifiers",
        "test_warmstart",
        "test_warmstart_cache",
        "test_warmstart_copy",
    ]
)
"""Files whose tests start real processes, most of them with torch: left out of `make quick`."""


@pytest.fixture(autouse=True)
def container_each(request, monkeypatch):
    """For the runtime `apptainer each`: a node whose kernel gives boxes no overlay within one container."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if "apptainer each" in params.values():
        from prorl_cli.sandbox import factory
        from tests.sandbox_kit import NoOverlay

        monkeypatch.setattr(factory, "OneContainer", NoOverlay)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in WHOLE_PROCESSES:
            item.add_marker("slow")
        if CLUSTER in item.path.parents:
            item.add_marker("cluster")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """No proxy, no cache and no state of the person who runs the tests leaks into them."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("PRORL_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(autouse=True)
def orphans_go_where_they_did():
    """A test that leaves this process a subreaper gives all later ones orphans that they did not start."""
    yield
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    assert not adopts.value


def need(part: str, available: bool) -> None:
    """Skip where `part` is missing, but fail where PRORL_REQUIRE promises it."""
    if available:
        return
    if part in REQUIRED:
        pytest.fail(f"PRORL_REQUIRE promises {part}, but it does not work here")
    pytest.skip(f"needs {PARTS[part]}")


REQUIRED = os.environ.get("PRORL_REQUIRE", "").split(",")
