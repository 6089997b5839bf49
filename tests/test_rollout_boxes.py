"""A worker's image: held in the cache while it is used, and a copy of it on the node's own disk."""

import asyncio
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from prorl_cli.recipe import Sandbox
from prorl_cli.rollout.boxes import _near, opened_boxes, scratch_folder
from tests.images_kit import fake, make_definition, store_of
from tests.sandbox_kit import need_runtime

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


def test_a_workers_boxes_hold_what_is_in_its_image_and_records_name_the_image(tmp_path, fake, monkeypatch):
    need_runtime("bwrap")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "node"))
    (tmp_path / "node").mkdir()
    store = store_of(tmp_path)
    built = store.build(make_definition(tmp_path), program=fake)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def scene():
        async with opened_boxes(Sandbox(runtime="bwrap", image=str(built.path)), ["edit"]) as boxes:
            box = await boxes.start()
            try:
                assert await box.get("/whole", 2**20) == built.path.read_bytes()
                assert store.gc(keep_bytes=0) == [], "it is in use"
                assert boxes.image == str(built.path)
            finally:
                await box.close()

    asyncio.run(scene())
    assert os.listdir(scratch_folder()) == ["images"]
    assert len(store.gc(keep_bytes=0)) == 1
