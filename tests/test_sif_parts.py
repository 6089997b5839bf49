"""What the shipped definitions bring into their images: the sanitiser of histories and the full-text search."""

import os
import subprocess
import sys

import pytest

from prorl_cli.rundir import shipped

PARTS = shipped("sif_defs") / "parts"
SECRET = "the fix that nobody may see"


def git(repository, *arguments, day=1, **options):
    when = f"2020-01-{day:02d}T12:00:00Z"
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when,
    }  # fmt: skip
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=trunk",
        "-c",
        "protocol.file.allow=always",
    ]
    command = ["git", *who, "-C", repository, *arguments]
    return subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, **options
    ).stdout.strip()


def commit(repository, day, text):
    (repository / "file").write_text(text)
    git(repository, "add", "file")
    git(repository, "commit", "-m", text, day=day)
    return git(repository, "rev-parse", "HEAD")


def sanitise(repository, wanted):
    return subprocess.run([PARTS / "sanitise-history", repository, wanted], capture_output=True, text=True)


def objects(repository):
    listed = git(repository, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    return "\n".join(git(repository, "cat-file", "-p", name) for name in listed)


@pytest.fixture
def world(tmp_path):
    """A clone with everything that can hold a later commit, and the commit that it should stop at."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    git(origin, "init")
    commit(origin, 1, "first")
    git(origin, "tag", "-a", "v1", "-m", "one", day=1)
    base = commit(origin, 2, "base")
    git(origin, "tag", "light")
    git(origin, "tag", "-a", "late-words", "-m", SECRET, "v1^{}", day=9)
    commit(origin, 3, SECRET)
    git(origin, "tag", "-a", "v2", "-m", "two", day=3)
    git(origin, "branch", "feature")
    git(tmp_path, "clone", str(origin), str(clone))
    for step in (
        ("config", "branch.trunk.note", "x"),
        ("notes", "add", "-m", SECRET, base),
        ("replace", base, "HEAD"),
        ("checkout", "--detach", "HEAD"),
        ("repack", "-a", "-d"),
    ):
        git(clone, *step, day=4)
    for pack in (clone / ".git" / "objects" / "pack").glob("*.pack"):
        pack.with_suffix(".keep").touch()
    (clone / "file").write_text(f"stashed {SECRET}")
    git(clone, "stash", day=5)
    (clone / "untracked").write_text(SECRET)
    (clone / "file").write_text(f"staged {SECRET}")
    git(clone, "add", "file")
    return clone, base


def test_a_sanitised_repository_holds_nothing_that_came_after_its_commit(world):
    clone, base = world
    assert SECRET in objects(clone)
    ended = sanitise(clone, base)
    assert ended.returncode == 0, ended.stderr
    assert SECRET not in objects(clone)
    assert git(clone, "rev-parse", "HEAD", "main").split() == [base, base]
    assert git(clone, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/tags/light",
        "refs/tags/v1",
    ]
    assert (git(clone, "remote"), git(clone, "reflog", "--all"), git(clone, "stash", "list")) == ("", "", "")
    assert (git(clone, "status", "--porcelain"), (clone / "file").read_text()) == ("", "base")
    assert git(clone, "describe", "--tags").startswith("light")
    everything = subprocess.run(["grep", "-rI", SECRET, clone], capture_output=True, text=True)
    assert everything.stdout == "" and "origin" not in (clone / ".git" / "config").read_text()
    assert sanitise(clone, base).returncode == 0, "once more changes nothing"


def test_what_cannot_be_sanitised_is_refused(world, tmp_path):
    clone, base = world
    borrowed = tmp_path / "borrowed"
    git(tmp_path, "clone", "--shared", str(clone), str(borrowed))
    (clone / ".git" / "modules").mkdir()
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "--bare", str(tmp_path / "origin"), str(bare))
    for repository, wanted, words in (
        (clone, base, "submodules"),
        (borrowed, "HEAD", "borrows objects"),
        (bare, "HEAD", "no repository with a working tree"),
        (tmp_path / "origin", "0" * 40, "there is no commit 000"),
        (tmp_path, "HEAD", "no repository"),
    ):
        ended = sanitise(repository, wanted)
        assert ended.returncode == 1 and words in ended.stderr, (words, ended.stderr)
    assert "refs/tags/v2" in git(tmp_path / "origin", "for-each-ref")


def search(*arguments):
    command = [sys.executable, "-I", PARTS / "search", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_search_finds_the_passage_its_file_and_its_line(tmp_path):
    texts = tmp_path / "texts"
    (texts / "deep").mkdir(parents=True)
    (texts / "deep" / "a.md").write_text("# Boiling\n\nWater boils at 373 K\nat sea level.\n\nIron melts at 1811 K.\n")
    (texts / "b.txt").write_bytes(
        b"Water is wet. \xff\n" + b"long line " * 400 + b"\n\nthe quick (brown) fox: AND OR NOT *\n"
    )
    (texts / "c.bin").write_text("Water boils elsewhere")
    index = tmp_path / "made" / "index.db"
    for _ in range(2):  # taking the same folder in again doubles nothing
        assert search("--index", index, "--add", texts).stdout == f"2 files are in {index}\n"
    assert search("--index", index, "water", "boils").stdout == "deep/a.md:3\nWater boils at 373 K\nat sea level.\n"
    assert search("--index", index, "iron wolframite").stdout.startswith("deep/a.md:6\n"), "one of the words will do"
    assert search("--index", index, '"fox: AND (" *').stdout.startswith("b.txt:4\n"), "no query language to trip over"
    both, one = (search("--index", index, "-n", count, "water").stdout for count in (5, 1))
    assert both.split("\n\n")[0] == one.rstrip() and len(both.split("\n\n")) == 2
    assert search("--index", index, "zzz").stdout == search("--index", index, "::").stdout == "nothing found\n"
    missing = search("--index", tmp_path / "none", "x")
    assert missing.returncode == 1 and "there is no index" in missing.stderr and not (tmp_path / "none").exists()
