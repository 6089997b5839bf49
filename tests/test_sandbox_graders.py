"""The tools of graders: a program whose answer nothing in the box can forge, stillness, and what was changed."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from tests.sandbox_kit import RUNTIMES, opened


@asynccontextmanager
async def rooted_box(runtime, scratch, **settings):
    unsafe = {"unsafe": True} if runtime == "process" else {}
    async with opened(runtime, scratch, serve=("bash", "python"), **unsafe, **settings) as factory:
        box = await factory.start()
        try:
            yield box
        finally:
            await box.close()


def in_box(runtime, scratch, scenario, **settings):
    async def run():
        async with rooted_box(runtime, scratch, **settings) as box:
            return await scenario(box)

    return asyncio.run(run())


async def execute(box, *argv, stdin="", timeout_s=20.0):
    result = await box.call("_execute", {"argv": list(argv), "stdin": stdin, "cwd": "."}, timeout_s)
    return result, json.loads(result.output) if result.outcome in ("ok", "timeout") else {}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_program_of_any_tool_inherits_a_descriptor_of_the_boxs_first_process(runtime, tmp_path):
    """One of them is the socket to the worker: who writes there answers in the box's name."""
    look = "for fd in /proc/$$/fd/*; do readlink $fd; done"

    async def scenario(box):
        _, program = await execute(box, "bash", "-c", look)
        shell = await box.call("bash", {"command": f"bash -c '{look}'"}, 20.0)
        code = f"import subprocess; print(subprocess.run(['bash', '-c', {look!r}], capture_output=True, text=True, "
        python = await box.call("python", {"code": code + "close_fds=False).stdout)"}, 20.0)
        return program["stdout"], shell.output, python.output

    for said in in_box(runtime, tmp_path, scenario):
        assert said.strip() and "socket:" not in said, said


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_program_gets_its_input_and_says_how_it_ended_on_both_outputs(runtime, tmp_path):
    async def scenario(box):
        _, said = await execute(box, "bash", "-c", "cat; echo aside >&2; exit 3", stdin="in\n" * 50_000)
        _, killed = await execute(box, "bash", "-c", "kill -9 $$")
        missing, _ = await execute(box, "no-such-program")
        return said, killed, missing

    said, killed, missing = in_box(runtime, tmp_path, scenario)
    assert said == {"exit": 3, "stdout": "in\n" * 50_000, "stderr": "aside\n", "omitted": 0}
    assert killed["exit"] == -9
    assert (missing.outcome, missing.output) == ("error", "error: there is no program no-such-program")


def test_a_program_ends_with_all_it_started_when_it_ends_or_its_time_is_up(tmp_path):
    async def scenario(box):
        left, _ = await execute(box, "bash", "-c", "sleep 100 & setsid sleep 100 & echo started")
        late, said = await execute(box, "bash", "-c", "echo early; sleep 100", timeout_s=0.5)
        _, seen = await execute(box, "bash", "-c", "grep -l sleep /proc/[0-9]*/comm; true")
        return left, late, said, seen

    left, late, said, seen = in_box("bwrap", tmp_path, scenario)
    assert (left.outcome, left.seconds < 10.0) == ("ok", True)
    assert (late.outcome, said["stdout"]) == ("timeout", "early\n")
    assert seen["stdout"] == ""


def test_output_without_end_is_bounded_and_what_is_missing_is_counted(tmp_path):
    async def scenario(box):
        return (await execute(box, "head", "-c", "50000000", "/dev/zero"))[1]

    said = in_box("bwrap", tmp_path, scenario)
    assert said["omitted"] == 50_000_000 - 260 * 1024


@pytest.mark.parametrize("runtime", ("bwrap", "process"))
def test_stillness_ends_whatever_the_policy_left_behind(runtime, tmp_path):
    async def scenario(box):
        await box.call(
            "bash", {"command": "(while :; do date +%N > beat; done) & sleep 100 & until [ -e beat ]; do :; done"}, 20.0
        )
        still = await box.call("_still", {}, 20.0)
        beats = [await box.get("beat") for _ in range(2)]
        return still.outcome, beats

    outcome, beats = in_box(runtime, tmp_path, scenario)
    assert outcome == "ok" and beats[0] == beats[1]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_was_changed_is_told_by_a_time_that_no_program_sets_back(runtime, tmp_path):
    commands = [
        "mkdir -p work/deep work/.git; cd work; echo 1 > new; echo 2 > deep/below; echo 3 > .git/skipped",
        "touch -d 2001-01-01 new; ln -s /etc/passwd link; ln -s /usr folder; mkfifo pipe",
        "printf 4 > $'a\\nname'; chmod 100 deep/below",
    ]

    async def scenario(box):
        await box.call("bash", {"command": "; ".join(commands)}, 20.0)
        asked = {"folder": "work", "skip": [".git"], "most": 10}
        whole = await box.call("_changed", asked, 20.0)
        cut = await box.call("_changed", asked | {"most": 1}, 20.0)
        gone = await box.call("_changed", asked | {"folder": "work/folder"}, 20.0)
        return json.loads(whole.output), json.loads(cut.output), gone.outcome

    whole, cut, gone = in_box(runtime, tmp_path, scenario)
    assert whole == {
        "files": [["deep/below", 2, True], ["new", 2, False]],
        "folders": {".": [".git", "deep", "folder", "link", "new", "pipe"], "deep": ["below"]},
        "links": 2, "others": 2, "more": False,
    }  # fmt: skip
    assert (cut["more"], len(cut["files"]), gone) == (True, 1, "error")


def test_long_names_of_any_letters_leave_the_answer_whole(tmp_path):
    code = "import os; os.makedirs('work/deep'); [open(f'work/deep/{n:03}' + '語' * 80, 'w') for n in range(900)]"

    async def scenario(box):
        await box.call("python", {"code": code}, 20.0)
        return json.loads((await box.call("_changed", {"folder": "work", "skip": [], "most": 1000}, 20.0)).output)

    said = in_box("bwrap", tmp_path, scenario)
    assert said["more"] and 300 < len(said["files"]) < 900 and said["folders"] == {".": ["deep"]}


def test_what_another_box_has_deleted_is_told_by_one_that_has_it(tmp_path):
    for name in ("a", "b", "c/d/e", "c/f", "c/.git/old", "g/h", ".git/new", "other.md"):
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(name)
    (tmp_path / "work" / "c" / "link").symlink_to("/usr")
    (tmp_path / "work" / "to").symlink_to("g")

    async def scenario(box):
        there = {".": ["a", "g", "to"], "g": [], "to": [], "new": []}
        asked = {"folder": str(tmp_path / "work"), "there": there, "skip": [".git"], "editable": ["[a-l]*"], "most": 5}
        found = await box.call("_missing", asked, 20.0)
        many = await box.call("_missing", asked | {"most": 4}, 20.0)
        nothing = await box.call("_missing", asked | {"folder": "gone"}, 20.0)
        return [json.loads(result.output) for result in (found, many, nothing)]

    assert in_box("process", tmp_path, scenario) == [
        {"files": ["b", "c/d/e", "c/f", "c/link", "g/h"], "more": False},
        {"files": [], "more": True},
        {"files": [], "more": False},
    ]
