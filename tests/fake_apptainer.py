"""Plays Apptainer's command line with the standard library alone: its images are a SIF's header around a definition.

What it does besides is in its environment: FAKE_LOG (a folder: a file for every build begun), FAKE_SLEEP (seconds of
one build, or of unpacking), FAKE_FAIL (last words of builds that fail), FAKE_TIMES (how many of them), FAKE_DAMAGE (bytes cut off),
FAKE_SAME (images do not differ), FAKE_SIZE (bytes of an image besides), FAKE_CHILD (a process that a build leaves at work),
FAKE_SAYS (last words of an unpacking that fails).
"""

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

HEADER = struct.Struct("<32s10s3s3s16sqqqqqqqq")


def sif(text):
    """The least that passes for a SIF file for this machine."""
    data = text.encode()
    arch = b"04\0" if os.uname().machine == "aarch64" else b"02\0"
    launch, table = b"#!/usr/bin/env run-singularity\n", HEADER.size
    head = HEADER.pack(launch, b"SIF_MAGIC\0", b"01\0", arch, bytes(16), 0, 0, 1, 2, table, 64, table + 64, len(data))
    return head + bytes(64) + data


def build(image, definition):
    log = Path(os.environ["FAKE_LOG"])
    times = len(os.listdir(log))
    (log / os.urandom(8).hex()).touch()
    print("INFO:    building", flush=True)
    if words := os.environ.get("FAKE_CHILD"):
        subprocess.Popen(words.split(), start_new_session=True)
    time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
    if times < int(os.environ.get("FAKE_TIMES", "1000")) and (words := os.environ.get("FAKE_FAIL")):
        print(f"FATAL:   {words}", flush=True)
        sys.exit(255)
    data = sif(
        Path(definition).read_text()
        + os.environ.get("FAKE_SAME", os.urandom(8).hex())
        + "x" * int(os.environ.get("FAKE_SIZE", "0"))
    )
    Path(image).write_bytes(data[: len(data) - int(os.environ.get("FAKE_DAMAGE", "0"))])


def play(words):
    match words:
        case ["--version"]:
            print("apptainer version 1.4.5")
        case ["build", "--help"]:
            print("      --mksquashfs-args string   extra arguments")
        case ["build", "--fakeroot", "--mksquashfs-args", _, image, definition]:
            build(image, definition)
        case ["sif", "list", _]:
            print("3    |1       |NONE    |36864-66682880            |FS (Squashfs/*System/amd64)")
        case ["--quiet", "exec", *_]:
            print("#prorl bash 5.2.15\n#prorl python 3.11.2\n#prorl packages pip\nnumpy==2.0\n#prorl packages system")
            print("bash=5.2\n#prorl unreadable\n#prorl end")
        case ["--quiet", "build", "--sandbox", "--fix-perms", folder, image]:
            Path(folder).mkdir()
            time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
            if words := os.environ.get("FAKE_SAYS"):
                sys.exit(f"FATAL:   {words}")
            (Path(folder) / "bin").mkdir()  # what a box asks of an image
            (Path(folder) / "whole").write_bytes(Path(image).read_bytes())
        case _:
            sys.exit(f"unknown: {words}")


if __name__ == "__main__":
    play(sys.argv[1:])
