"""Keys: any change of what can change the image changes the lock key; when, where and in which order it lies does not."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prorl_cli.images import MODES, key, read_definition
from prorl_cli.images.key import Facts
from tests.images_kit import write_definition

HERE = Facts(arch="amd64")
TEXT = """\
# for whom
Bootstrap: localimage
From: {{ base }}
%arguments
    base=base
    word=one
%files
    tree /opt/
%post -c /bin/sh
    echo {{ word }}
%environment
    export A=1
%labels
    version {{ word }}
"""

names = st.text("abcxyz._-", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))
files = st.dictionaries(names, st.tuples(st.binary(max_size=20), st.sampled_from([0o644, 0o755, 0o600])), max_size=4)
trees = st.dictionaries(names, files, max_size=3)


def world(folder, tree, *, backwards=False):
    """A definition with `tree` below its folder; written in another order when `backwards`."""
    write_definition(folder, "fake", TEXT)
    (folder / "tree").mkdir()
    for name, content in sorted(tree.items(), reverse=backwards):
        (folder / "tree" / name).mkdir()
        for file, (data, mode) in sorted(content.items(), reverse=backwards):
            path = folder / "tree" / name / file
            path.write_bytes(data)
            path.chmod(mode)
    return folder


def lock(folder, facts=HERE, **arguments):
    return key(read_definition(folder / "fake.def", arguments), "lock", facts)


@settings(max_examples=40, deadline=None)
@given(tree=trees)
def test_place_order_and_time_do_not_count(tree):
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        world(Path(first), tree)
        moved = world(Path(second) / "a" / "b", tree, backwards=True)
        for path in moved.rglob("*"):
            os.utime(path, (1, 1))
        assert lock(Path(first)) == lock(moved)


@settings(max_examples=40, deadline=None)
@given(tree=trees.filter(lambda tree: any(tree.values())), data=st.data())
def test_any_change_of_any_input_counts(tree, data):
    folder = data.draw(st.sampled_from(sorted(name for name in tree if tree[name])))
    file = data.draw(st.sampled_from(sorted(tree[folder])))
    content, mode = tree[folder][file]
    changed = {
        "bytes": {**tree[folder], file: (content + b"!", mode)},
        "mode": {**tree[folder], file: (content, mode ^ 0o011)},
        "name": {**{k: v for k, v in tree[folder].items() if k != file}, f"{file}#": (content, mode)},
        "gone": {k: v for k, v in tree[folder].items() if k != file},
        "more": {**tree[folder], f"{file}+": (b"", 0o644)},
    }
    seen = []
    for content in (tree[folder], *changed.values()):
        with tempfile.TemporaryDirectory() as place:
            seen.append(lock(world(Path(place), {**tree, folder: content})))
    assert len(set(seen)) == len(seen)


CHANGES = {
    "script": lambda folder: rewrite(folder, "echo", "printf"),
    "shell": lambda folder: rewrite(folder, "/bin/sh", "/bin/bash"),
    "environment": lambda folder: rewrite(folder, "A=1", "A=2"),
    "default": lambda folder: rewrite(folder, "word=one", "word=two"),
    "destination": lambda folder: rewrite(folder, "/opt/", "/srv/"),
    "label": lambda folder: rewrite(folder, "    version", "    x y\n    version"),
    "base file": lambda folder: (folder / "base" / "bin" / "sh").write_text("another shell"),
    "base mode": lambda folder: (folder / "base" / "bin" / "sh").chmod(0o700),
    "base link": lambda folder: (folder / "base" / "bin" / "bash").symlink_to("sh"),
    "base folder": lambda folder: (folder / "base" / "empty").mkdir(),
    "input folder": lambda folder: (folder / "tree" / "empty").mkdir(),
    "input mode": lambda folder: (folder / "tree").chmod(0o700),
}


def rewrite(folder, old, new):
    text = (folder / "fake.def").read_text()
    assert old in text
    (folder / "fake.def").write_text(text.replace(old, new))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_each_single_change_counts(tmp_path, change):
    world(tmp_path, {"a": {"b": (b"c", 0o644)}})
    before = lock(tmp_path)
    change(tmp_path)
    assert lock(tmp_path) != before


def test_arguments_architecture_and_compressor_count_and_a_comment_does_not(tmp_path):
    world(tmp_path, {})
    before = lock(tmp_path)
    assert lock(tmp_path, word="two") != before
    assert lock(tmp_path, word="one") == before
    assert lock(tmp_path, replace(HERE, arch="arm64")) != before
    assert lock(tmp_path, replace(HERE, compressor="zstd")) != before
    rewrite(tmp_path, "# for whom", "# for others")
    assert lock(tmp_path) == before


def test_a_definition_of_another_name_is_another_image(tmp_path):
    world(tmp_path, {})
    before = lock(tmp_path)
    (tmp_path / "fake.def").rename(tmp_path / "other.def")
    assert key(read_definition(tmp_path / "other.def"), "lock", HERE) != before


def test_a_base_counts_by_what_it_holds_not_by_its_path(tmp_path):
    world(tmp_path, {})
    before = lock(tmp_path)
    shutil.copytree(tmp_path / "base", tmp_path / "other", symlinks=True)
    assert lock(tmp_path, base=str(tmp_path / "other")) == before


def test_a_link_counts_as_what_it_leads_to_for_the_builder_follows_it(tmp_path):
    world(tmp_path, {"a": {"b": (b"c", 0o644)}})
    before = lock(tmp_path)
    (tmp_path / "tree" / "a" / "b").unlink()
    (tmp_path / "away").write_text("c")
    (tmp_path / "tree" / "a" / "b").symlink_to(tmp_path / "away")
    assert lock(tmp_path) == before


def test_versioned_goes_by_name_versions_base_and_architecture_alone(tmp_path):
    world(tmp_path, {})

    def versioned(facts=HERE, name="fake", **arguments):
        return key(read_definition(tmp_path / f"{name}.def", arguments), "versioned", facts)

    before = versioned()
    rewrite(tmp_path, "echo", "printf")
    (tmp_path / "tree" / "new").touch()
    assert versioned() == before
    assert versioned(word="two") != before
    assert versioned(replace(HERE, arch="arm64")) != before
    shutil.copy(tmp_path / "fake.def", tmp_path / "other.def")
    assert versioned(name="other") != before
    (tmp_path / "base" / "new").touch()
    assert versioned() != before


def test_the_modes_share_no_key(tmp_path):
    world(tmp_path, {})
    definition = read_definition(tmp_path / "fake.def")
    assert len({key(definition, mode, HERE) for mode in MODES}) == 3
