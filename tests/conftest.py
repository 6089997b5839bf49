"""What every test gets: a clean environment, and skips that name how to get the missing part."""

import os

import pytest

PARTS = {
    "bwrap": "bubblewrap (Debian: apt-get install bubblewrap)",
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    """No proxy, no cache and no state of the person who runs the tests leaks into them."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("PRORL_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def need(part: str, available: bool) -> None:
    """Skip where `part` is missing, but fail where PRORL_REQUIRE promises it."""
    if available:
        return
    if part in REQUIRED:
        pytest.fail(f"PRORL_REQUIRE promises {part}, but it does not work here")
    pytest.skip(f"needs {PARTS[part]}")


REQUIRED = os.environ.get("PRORL_REQUIRE", "").split(",")
