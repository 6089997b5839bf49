"""`prorl cache`: what a person types, what is printed, and what is refused; the builder is played by a program."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prorl_cli.cli import main
from prorl_cli.cli.definitions import wanted
from prorl_cli.cli.launching import resume
from prorl_cli.cli.pinning import pinned, with_image
from prorl_cli.cli.preflight import checked
from prorl_cli.errors import RecipeError
from prorl_cli.fsio import publish
from prorl_cli.images import facts_here, key, read_definition
from prorl_cli.recipe import is_image_name, load_recipe
from prorl_cli.rundir import RunDir, shipped
from prorl_cli.spool.members import Outcome, claim_attempt, publish_outcome
from tests.images_kit import DEF, begun, fake, make_definition
from tests.quick_run import prorl

__all__ = ["fake"]

RECIPE = "name: r\nmodel: builtin:tiny\nagent: {{renderer: tiny}}\ntasks: [{{domain: a, source: a.jsonl}}]\nsandbox: {{runtime: apptainer, image: {image}}}\n"


@pytest.fixture
def place(tmp_path, fake, monkeypatch):
    """A folder with the definitions `one` and `two`, a recipe that wants `one`, a cache, and a builder in PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "cache"))
    make_definition(tmp_path, "one")
    make_definition(tmp_path, "two", DEF.replace("%post", "%post\n    # another"))
    (tmp_path / "my.yaml").write_text(RECIPE.format(image="one"))
    return tmp_path


@pytest.fixture
def cache(monkeypatch, capsys):
    """`prorl cache …` in this process."""

    def typed(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["prorl", "cache", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said
        return said

    return typed


@pytest.fixture
def built(cache):
    return lambda *words, code=0: json.loads(cache("build", *words, "--json", code=code).out)


@pytest.fixture
def refused(cache):
    def typed(*words):
        said = cache(*words, code=2)
        assert said.out == ""
        return " ".join(said.err.split())

    return typed


def test_every_image_of_a_recipe_and_of_definitions_is_built_once(place, built):
    first = built("my.yaml", "two.def", "one", "--jobs", "2")
    assert [(row["name"], row["state"]) for row in first] == [("one", "built"), ("two", "built")]
    again = built("my.yaml", "two")
    assert [(row["name"], row["state"]) for row in again] == [("one", "there"), ("two", "there")]
    assert [row["path"] for row in again] == [row["path"] for row in first] and begun(place) == 2
    assert built("one", "--mode", "scratch")[0]["state"] == "built"


def test_what_is_meant_twice_is_built_once_and_a_shipped_definition_goes_by_its_files_name(place, built):
    (place / "other").mkdir()
    (place / "again.yaml").write_text(RECIPE.format(image="one"))
    rows = built("my.yaml", "again.yaml", "one", "other/../one.def")
    assert [(row["name"], row["state"]) for row in rows] == [("one", "built")]
    for words in (("math.def",), ("math",)):
        assert wanted(words, place).files == (shipped("sif_defs") / "math.def",)


def test_a_plain_log_has_a_line_for_each_change_and_ends_with_what_there_is(place, cache):
    lines = cache("build", "one").err.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == ["building", "publishing", "built"]
    assert re.fullmatch("one: built: 0 MiB in [0-9]+ s  [0-9a-f]{12}", lines[-1])


def test_a_base_that_can_move_is_warned_of(place, cache, built):
    (place / "moving.def").write_text("Bootstrap: docker\nFrom: debian:12\n%post\n  true\n")
    lines = cache("build", "moving").err.splitlines()
    assert lines[0].startswith("moving: warning: ") and "debian:12" in lines[0] and "pin" in lines[0]
    assert "debian:12" in built("moving")[0]["warnings"][0]


def test_an_image_that_fails_keeps_none_of_the_others(place):
    (place / "bad.def").write_text(DEF.replace("%post", "%post\n    # broken"))
    environment = {**os.environ, "FAKE_FAIL": "no space left on device", "FAKE_TIMES": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "prorl_cli", "cache", "build", "bad.def", "one", "--json"],
        cwd=place, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    bad, good = json.loads(ended.stdout)
    assert (ended.returncode, bad["state"], good["state"]) == (1, "failed", "built")
    assert "the node's disk is full" in bad["error"] and "its log is" in bad["error"]


def test_arguments_and_a_base_go_to_the_definitions_that_have_a_place_for_them(place, cache, built, refused):
    (place / "other").mkdir()
    plain = DEF.replace("{{ base }}", "base").replace("{{ number }}", "7")
    with_base = (
        DEF.replace("localimage", "{{ bootstrap }}")
        .replace("{{ base }}", "{{ from }}")
        .replace("base=base", "bootstrap=docker")
    )
    (place / "plain.def").write_text(plain)
    (place / "based.def").write_text(with_base)
    rows = built("plain", "based", "one", "--base", "other", "--build-arg", "number=3")
    assert {row["state"] for row in rows} == {"built"}
    facts = json.loads(cache("info", "based", "--json").out)
    assert facts["versions"] == [["version", "3"]] and facts["name"] == "based"
    assert "From: /" in (place / "cache" / "objects" / f"sha256-{facts['digest']}.sif").read_text(errors="replace")
    assert "--build-arg wheels: there is no {{ wheels }} in one.def" in refused(
        "build", "one", "--build-arg", "wheels=x"
    )
    assert "--base: there is no {{ bootstrap }} in one.def" in refused("build", "one", "--base", "other")


def test_what_can_be_refused_is_refused_before_anything_is_begun(place, refused):
    (place / "bad.def").write_text("Bootstrap: localimage\nFrom: gone\n%setup\n  rm -rf /\n")
    (place / "worse.def").write_text("nonsense\n")
    (place / "sub").mkdir()
    make_definition(place / "sub", "one")
    (place / "path.yaml").write_text(RECIPE.format(image="./a.sif"))
    (place / "lost.yaml").write_text(RECIPE.format(image="lost"))
    for words, said in (
        (("nonsense",), "there is no definition nonsense.def in"),
        (("gone.def",), "prorl ships code, math, stem, swe"),
        (("gone.yaml",), "no such recipe: gone.yaml"),
        (("quickstart",), "quickstart.yaml names no image: nothing to build"),
        (("quickstart.yaml",), "quickstart.yaml names no image: nothing to build"),
        (("",), "there is no definition"),
        (("path.yaml",), "is the file"),
        (("lost.yaml",), "there is no definition lost.def in"),
        (("one", "--mode", "fast"), "--mode fast: there are scratch, versioned, lock"),
        (("one", "--build-arg", "x"), "--build-arg x: it must be NAME=VALUE"),
        (("one", "--base", "nowhere"), "--base nowhere: there is no"),
        (("one", "sub/one.def"), "would both be the image 'one'"),
        (("one", "--slurm"), "--slurm needs a recipe"),
        (("my.yaml", "--slurm"), "--slurm needs a time limit"),
        (("one", "bad.def", "worse.def"), "bad.def:3: %setup runs on the host"),
        (("one", "bad.def", "worse.def"), "worse.def:1: "),
    ):
        assert said in refused("build", *words), words
    assert begun(place) == 0


def test_images_are_listed_looked_into_proven_carried_away_and_removed(place, monkeypatch, cache, refused):
    assert all("no images in" in cache(word).out for word in ("list", "verify"))
    cache("build", "one", "two")
    assert [row["name"] for row in json.loads(cache("list", "--json").out)] in (
        ["one", "two"],
        ["two", "one"],
    )
    (facts,) = [row for row in json.loads(cache("list", "--json").out) if row["name"] == "one"]
    short = facts["key"][:12]
    assert f"one   {short}" in cache("list").out
    shown = cache("info", short).out
    assert "python     3.11.2" in shown and "1 pip packages\n  numpy==2.0" in shown
    assert cache("verify", "one").out == f"one {short}: ok\n"

    staged = cache("stage", "one", "node").out.strip()
    assert staged == f"{place}/node/sha256-{facts['digest']}.sif"
    unpacked = Path(cache("stage", "one", "node", "--unpacked").out.strip())
    assert (unpacked / "whole").is_file()
    cache("export", "one", "one.tar")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("PRORL_CACHE", str(place / "elsewhere"))
        assert facts["digest"] in cache("import", "one.tar").out

    assert cache("gc").out == "nothing to remove\n"
    assert "would remove" in cache("gc", "--keep", "1B", "--dry-run").out
    assert len(json.loads(cache("list", "--json").out)) == 2
    assert "removed one" in cache("gc", "--keep", "1B").out
    assert "there is no image one in" in refused("info", "one")


def test_a_damaged_image_is_found_and_built_again(place, cache, built):
    (row,) = built("one")
    Path(row["path"]).chmod(0o644)
    with open(row["path"], "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    for asked in (("verify",), ("verify", "one")):
        assert "is not what was published" in cache(*asked, code=1).out
    assert built("one")[0]["state"] == "built"
    assert cache("verify").out.endswith("ok\n")


def test_bad_sizes_files_and_names_are_refused(place, refused):
    (place / "file").write_text("no archive")
    for words, said in (
        (("gc", "--keep", "3"), "--keep: expected a number with a unit"),
        (("gc", "--unused", "3GiB"), "--unused: expected a number with a unit"),
        (("import", "file"), "is no image that was exported"),
        (("import", "gone"), "there is no gone"),
        (("verify", "gone"), "there is no image gone"),
        (("import-dockerfile", "gone", "-o", "x.def"), "cannot read gone"),
        (("import-dockerfile", "file", "-o", "x.sif"), "a definition's file is called NAME.def"),
        (("import-dockerfile", "file", "-o", "one.def"), "one.def exists already"),
        (("import-dockerfile", "file", "-o", "x.def"), "line 1: NO: it comes before the first FROM"),
    ):
        assert said in refused(*words), words
    assert not (place / "x.def").exists()


def test_a_dockerfile_becomes_a_definition_that_builds(place, cache, built):
    (place / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\nCOPY input.txt .\nEXPOSE 80\nRUN cat input.txt\n")
    said = cache("import-dockerfile", "Dockerfile", "-o", "mine.def").out.splitlines()
    assert said == [
        "note: line 4: EXPOSE left out: a box has no network",
        "mine.def is written: prorl cache build mine.def",
    ]
    assert built("mine.def", "--base", "base")[0]["state"] == "built"


def test_an_interrupted_build_leaves_no_process_and_goes_on_later(place, built):
    environment = {**os.environ, "FAKE_SLEEP": "60"}
    command = [sys.executable, "-m", "prorl_cli", "cache", "build", "one"]
    process = subprocess.Popen(
        command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True,
        # Whoever runs the tests in the background has had the signal ignored for all of them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while begun(place) == 0:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 3 and "stopped: the same command goes on" in said
    assert built("one")[0]["state"] == "built"
    assert os.listdir(place / "scratch") == []


@pytest.mark.parametrize("image", ["math", "my-image.v2", "a_b"])
def test_a_bare_word_names_a_definition(image, tmp_path):
    assert is_image_name(image)
    (tmp_path / "r.yaml").write_text(RECIPE.format(image=image))
    assert load_recipe(tmp_path / "r.yaml").sandbox.image == image


@pytest.mark.parametrize("image", ["a.sif", "./math", "/images/math", "../x", "~/x.sif", ""])
def test_everything_else_is_a_path(image):
    assert not is_image_name(image)


def test_every_shipped_definition_reads_with_a_base_of_its_own(tmp_path):
    (tmp_path / "base").mkdir()
    given = {"bootstrap": "localimage", "from": str(tmp_path / "base")}
    files = sorted(shipped("sif_defs").glob("*.def"))
    assert [file.stem for file in files] == ["code", "math", "stem", "swe"]
    for file in files:
        definition = read_definition(file, given)
        assert key(definition, "versioned", facts_here()) != key(definition, "lock", facts_here())
        assert ("version", "1") in definition.versions


def test_help_teaches_every_command_of_the_cache(tmp_path):
    text = prorl(tmp_path, "cache", "--help", check=True).stdout
    for command in (
        "build",
        "list",
        "verify",
        "gc",
        "info",
        "stage",
        "export",
        "import",
        "import-dockerfile",
        "PRORL_CACHE",
    ):
        assert command in text


def test_a_run_keeps_the_image_that_its_recipe_named_when_it_was_launched(place, built):
    rows = "\n".join(f'{{"question": "What is {n} + 1?", "answer": {n + 1}}}' for n in range(30))
    (place / "a.jsonl").write_text(rows)
    recipe = place / "my.yaml"
    with pytest.raises(
        RecipeError, match=f"sandbox.image: there is no image one in .*: run `prorl cache build {place}/one.def`"
    ):
        checked(recipe, ())
    (row,) = built("my.yaml")
    kept = checked(recipe, ())
    assert kept.sandbox.image == row["path"]
    built("one", "--mode", "scratch")
    assert checked(recipe, ()).sandbox.image != row["path"]
    assert pinned(kept) == kept
    Path(row["path"]).unlink()
    with pytest.raises(RecipeError, match="is gone from the cache: say its name with --set"):
        pinned(kept)
    with pytest.raises(RecipeError, match="run `prorl cache build nothing`"):
        pinned(with_image(kept, "nothing"))


def test_a_run_that_is_done_needs_its_image_no_more(place, capsys):
    run = RunDir(place / "run")
    run.create()
    recipe = with_image(load_recipe(place / "my.yaml"), f"{place}/objects/sha256-{'0' * 64}.sif")
    publish(run.resolved(1), recipe.model_dump_json().encode())
    claim_attempt(run, {"host": "elsewhere", "pid": 1, "pid_started": 0.0})
    publish_outcome(run, 1, Outcome(state="done", reason="all 5 steps", step=5))
    assert resume(run.root, (), None, wait=False, check=False) == 0
    assert "is done: all 5 steps" in capsys.readouterr().out
    with pytest.raises(RecipeError, match="is gone from the cache"):
        resume(run.root, ("learner.steps=9",), None, wait=False, check=False)
