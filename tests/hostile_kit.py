"""Real boxes with a shell, for what hostile policies do in them; nothing may be left of a box afterwards."""

import pytest

from tests.sandbox_kit import EACH, one_box, opened, settle


def on(*runtimes):
    further = (EACH,) if "apptainer" in runtimes else ()
    marks = dict.fromkeys(("apptainer", EACH), pytest.mark.cluster)
    named = [pytest.param(name, marks=marks.get(name, ())) for name in (*runtimes, *further)]
    return pytest.mark.parametrize("runtime", named)


@pytest.fixture
def scratch(tmp_path):
    """A node's disk; no test may leave anything there, nor a process."""
    yield tmp_path / "scratch"
    assert settle() == []
    assert list((tmp_path / "scratch").glob("boxes-*")) == []


def box_of(runtime, scratch, serve=("bash", "calculator"), **settings):
    return one_box(runtime, scratch, serve=serve, **_settings(runtime, settings))


def boxes_of(runtime, scratch, **settings):
    return opened(runtime, scratch, serve=("bash", "calculator"), **_settings(runtime, settings))


def _settings(runtime, settings):
    return ({"unsafe": True} if runtime == "process" else {}) | settings


async def run(box, command, timeout_s=30.0):
    return await box.call("bash", {"command": command}, timeout_s)


async def out(box, command, timeout_s=30.0):
    result = await run(box, command, timeout_s)
    assert (result.outcome, result.facts["exit_code"]) == ("ok", 0), (command, result)
    return result.output
