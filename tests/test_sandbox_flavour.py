"""What the two container programs say of themselves, as recorded from real ones, and what prorl makes of it."""

import pytest

from prorl_cli.errors import UserError
from prorl_cli.sandbox.boxed.launched import complaint
from prorl_cli.sandbox.flavour import read, read_for_boxes, system_partition, unpacks


@pytest.mark.parametrize(
    ("said", "name", "version", "prefix"),
    [
        ("apptainer version 1.4.5\n", "apptainer", (1, 4, 5), "APPTAINER"),
        ("apptainer version 1.5.3-1.el9\n", "apptainer", (1, 5, 3), "APPTAINER"),
        ("singularity-ce version 4.1.1\n", "singularity-ce", (4, 1, 1), "SINGULARITY"),
        ("singularity-ce version 4.3.0-noble\n", "singularity-ce", (4, 3, 0), "SINGULARITY"),
        ("singularity-ce version 3.11.4-1.el8\n", "singularity-ce", (3, 11, 4), "SINGULARITY"),
        ("WARNING: a module is deprecated\nsingularity version 3.11.4\n", "singularity", (3, 11, 4), "SINGULARITY"),
        ("singularity version 3.7", "singularity", (3, 7), "SINGULARITY"),
    ],
)
def test_each_is_known_by_its_version(said, name, version, prefix):
    found = read(said)
    assert (found.name, found.version, found.prefix) == (name, version, prefix)


@pytest.mark.parametrize(
    "said", ["singularity version 3.8.6\n", "singularity-ce version 3.9.4", "apptainer version 0.1.0"]
)
def test_what_is_too_old_for_walls_is_refused(said):
    with pytest.raises(UserError, match=r"is too old: boxes need \d"):
        read_for_boxes(said)
    assert read(said).version  # images can be built with it


@pytest.mark.parametrize("said", ["", "bash: apptainer: command not found", "podman version 5.0.0"])
def test_what_is_neither_is_refused(said):
    with pytest.raises(UserError, match="not a version of Apptainer or Singularity"):
        read(said)


UNPACKING = """\
INFO:    squashfuse not found, will not be able to mount SIF
INFO:    fuse2fs not found, will not be able to mount EXT3 filesystems
INFO:    gocryptfs not found, will not be able to use gocryptfs
INFO:    Converting SIF file to temporary sandbox...
INFO:    Cleaning up image...
"""


def test_a_start_that_copies_the_whole_image_is_noticed():
    assert unpacks(UNPACKING)
    assert not unpacks("INFO:    underlay of /etc/localtime required more than 50 (79) bind mounts\n")


def test_what_went_wrong_is_found_among_what_is_said_after_it():
    said = "INFO:    Converting SIF file to temporary sandbox...\nFATAL:   container creation failed: no\nINFO:    Cleaning up image...\n"
    assert complaint(said) == "FATAL:   container creation failed: no"
    assert complaint("bash: not found\n") == "bash: not found" and complaint("") == ""


LISTED = """\
------------------------------------------------------------------------------
ID   |GROUP   |LINK    |SIF POSITION (start-end)  |TYPE
------------------------------------------------------------------------------
1    |1       |NONE    |32176-32262               |Def.FILE
2    |1       |NONE    |32262-34551               |JSON.Generic
3    |1       |NONE    |36864-66682880            |FS (Squashfs/*System/amd64)
4    |1       |NONE    |66682880-66999999         |FS (Ext3/Overlay/amd64)
"""


def test_the_partition_that_an_image_starts_from_is_found_in_its_list():
    assert system_partition(LISTED) == 3


@pytest.mark.parametrize("said", ["", "FATAL:   not a SIF file", LISTED.replace("Squashfs", "Ext3")])
def test_an_image_without_a_packed_one_is_refused(said):
    with pytest.raises(UserError, match="no packed root filesystem"):
        system_partition(said)
