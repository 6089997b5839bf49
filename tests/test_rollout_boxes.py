"""A worker's image: held in the cache while it is used, and a copy of it on the node's own disk."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from prorl_cli.recipe import Sandbox
from prorl_cli.rollout.boxes import _near, scratch_folder
from tests.images_kit import fake, make_definition, store_of

__all__ = ["fake"]


def test_an_image_of_the_cache_is_copied_to_the_node_once_and_any_other_is_used_where_it_lies(
    tmp_path, fake, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    store = store_of(tmp_path)
    built = store.build(make_definition(tmp_path), program=fake)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    wanted = Sandbox(runtime="apptainer", image=str(built.path))
    with ExitStack() as use:
        copies = [_near(wanted, use).image for _ in range(2)]
        assert copies == [str(scratch_folder() / "images" / built.path.stem)] * 2
        whole = Path(copies[0]) / "whole"
        assert whole.read_bytes() == built.path.read_bytes() and whole.is_relative_to(tmp_path / "node")
        assert store.gc(keep_bytes=0) == [] and built.path.exists()
        elsewhere = Sandbox(runtime="apptainer", image=str(tmp_path / "mine.sif"))
        assert _near(elsewhere, use) == elsewhere and _near(Sandbox(), use) == Sandbox()
    assert len(store.gc(keep_bytes=0)) == 1 and not built.path.exists()
