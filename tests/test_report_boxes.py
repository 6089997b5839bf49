"""What `doctor` says of boxes: this node is tried for real, others are judged from what they said."""

import logging
from dataclasses import replace

import pytest

from prorl_cli.report.boxes import Node, box_findings, gather_boxes

FINE = Node(
    kernel="6.8.0-45-generic", namespaces="", network="", overlay="", scratch="/tmp", switches={}, fuse=True,
    container="apptainer version 1.4.5", settings="allow pid ns = yes\nsessiondir max size = 64\n",
    cgroups="version 2, not delegated", subuids=True, boxes="", boxes_note="",
)  # fmt: skip


def judged(**changes):
    return {finding.name: finding for finding in box_findings(replace(FINE, **changes))}


def test_a_node_that_allows_everything_has_nothing_to_mend():
    assert {finding.verdict for finding in judged().values()} == {"ok"}
    assert "boxes write to /tmp" in judged()["sandbox.runtime: bwrap"].value
    assert judged()["apptainer"].value == "apptainer version 1.4.5; one container for all boxes of a worker"


def test_without_an_overlay_boxes_of_apptainer_start_slowly_and_that_is_said():
    found = judged(overlay="mount: m: permission denied.")
    assert found["apptainer"].value == "apptainer version 1.4.5; a container for each box"
    assert "a container each" in found["overlay"].fix


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"kernel/apparmor_restrict_unprivileged_userns": "1", "user/max_user_namespaces": "9"}, "AppArmor profile"),
        ({"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0"}, "max_user_namespaces > 0"),
    ],
)
def test_the_setting_that_forbids_user_namespaces_is_named(switches, words):
    found = judged(namespaces="unshare: unshare failed: Operation not permitted", switches=switches)["user namespaces"]
    assert found.verdict == "note" and words in found.fix and "not permitted" in found.value


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        ({"boxes": "bwrap is not installed"}, "sandbox.runtime: bwrap", "refuse bash and python"),
        ({"boxes_note": "no overlay (…)"}, "sandbox.runtime: bwrap", "bounded by sandbox.memory"),
        ({"network": "unshare failed: No space left on device"}, "network none", "max_net_namespaces"),
        ({"overlay": "mount: m: permission denied."}, "overlay", "TMPDIR"),
        ({"overlay": "mount: m: permission denied."}, "sessiondir max size", "no more than 64 MiB"),
        ({"kernel": "4.18.0-553.el8_10.x86_64"}, "kernel", "5.14"),
        ({"fuse": False}, "/dev/fuse", "unpack images"),
        ({"container": ""}, "apptainer", "module load"),
        ({"container": "singularity version 3.8.6"}, "apptainer", "too old"),
        ({"settings": "allow pid ns = no\n"}, "allow pid ns", "sandbox.runtime: bwrap"),
        ({"subuids": False}, "subordinate ids", "/etc/subuid"),
    ],
)
def test_what_is_missing_is_said_with_its_fix(changes, name, words):
    found = judged(**changes)[name]
    assert found.verdict == "note" and words in found.fix


def test_this_node_is_asked_itself():
    room = logging.getLogger("prorl_cli.sandbox")
    before = room.level
    node = gather_boxes()
    assert room.level == before
    assert node.kernel and node.cgroups.startswith("version ")
    if not node.namespaces and not node.boxes:
        assert bool(node.overlay) == bool(node.boxes_note), "boxes do what was tried"
    assert all(finding.fix for finding in box_findings(node) if finding.verdict != "ok")
