"""The parts of a build: where it happens, what it may use, what its failures mean, when an image is one."""

import os
import time
from dataclasses import replace

import psutil
import pytest

from prorl_cli.errors import UserError
from prorl_cli.images import build_log, guard, share
from prorl_cli.images.check import BadImage, check_header, parse_list, parse_smoke
from prorl_cli.images.places import Place, choose, scratch_folder
from prorl_cli.images.program import Program, Share, ask, build_command, environment
from prorl_cli.images.reasons import explain
from prorl_cli.sandbox.flavour import Flavour
from tests.fake_apptainer import sif
from tests.images_kit import fake
from tests.test_images_build import until

__all__ = ["fake"]

GIB = 1 << 30


def place(path, kind="ext4", free=10 * GIB, writable=True, executable=True):
    return Place(path=path, kind=kind, free=free, writable=writable, executable=executable)


def test_a_build_happens_on_the_first_disk_of_the_node_with_room():
    assert choose([place("/a", "tmpfs"), place("/b", free=GIB), place("/c"), place("/d")]).path == "/c"


def test_memory_is_taken_only_where_no_disk_has_room():
    assert choose([place("/a", "tmpfs"), place("/b", free=GIB)]).path == "/a"
    assert choose([place("/a", "tmpfs", free=GIB), place("/b", free=GIB + 1)]).path == "/b"


def test_network_noexec_and_closed_folders_are_refused_by_name():
    bad = [place("/n", "nfs4"), place("/l", "lustre"), place("/c", "fuse.ceph"), place("/x", executable=False)]
    with pytest.raises(UserError) as caught:
        choose([*bad, place("/w", writable=False)])
    for words in ("/n is on a network filesystem (nfs4)", "/c is on a network", "/x is mounted noexec", "/w cannot be"):
        assert words in str(caught.value)
    assert choose([*bad, place("/ok")]).path == "/ok"


def test_what_a_killed_builder_left_is_removed_by_the_next_and_a_living_ones_folder_is_not(tmp_path):
    asked = {"APPTAINER_TMPDIR": str(tmp_path)}
    left = tmp_path / "prorl-build-killed" / "closed"
    (left / "in").mkdir(parents=True)
    left.chmod(0)
    with scratch_folder(asked) as living:
        assert not left.parent.exists()
        with scratch_folder(asked) as second:
            assert living.is_dir()
            assert second != living
    assert os.listdir(tmp_path) == []


def made_by(kind, *version):
    return Program(path="/bin/x", flavour=Flavour(name=kind, version=version))


def test_the_packing_is_told_what_the_job_was_given(tmp_path):
    words = build_command(
        made_by("apptainer", 1, 4, 5), tmp_path / "i", tmp_path / "d", Share(processors=3, memory=GIB)
    )
    assert words[words.index("--mksquashfs-args") + 1] == "-comp gzip -processors 3 -mem 1024M"
    old = replace(made_by("singularity", 3, 8, 7), bounded=False)
    assert build_command(old, tmp_path / "i", tmp_path / "d", Share(processors=3, memory=GIB))[1:3] == [
        "build",
        "--fakeroot",
    ]
    assert not [
        word for word in build_command(old, tmp_path, tmp_path, Share(processors=3, memory=1)) if "mksquash" in word
    ]


def test_the_program_is_asked_what_it_can(fake):
    assert ask(fake.path) == fake
    with pytest.raises(UserError, match="does not run"):
        ask(fake.path + "-nothere")


def test_the_share_is_what_cgroups_and_affinity_leave(monkeypatch, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1000000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "memory" / "c").mkdir(parents=True)
    (tmp_path / "memory" / "c" / "memory.limit_in_bytes").write_text("2000\n")
    monkeypatch.setattr(share, "_CGROUPS", tmp_path)
    assert list(share._limits("0::/a/b\n")) == [1_000_000]
    assert list(share._limits("5:cpu,cpuacct:/c\n4:memory:/c\n0::/\n")) == [2000]
    monkeypatch.setattr(share, "_available", lambda: 8 << 30)
    processors = len(os.sched_getaffinity(0))
    assert share.share_here(1).processors == processors
    assert share.share_here(processors + 1).processors == 1
    assert [share.share_here(builds).memory for builds in (1, 4)] == [4 << 30, 1 << 30]


def test_a_build_sees_no_option_of_this_user_and_keeps_proxies_and_logins(tmp_path):
    own = {
        "PATH": "/bin", "https_proxy": "p", "APPTAINER_BIND": "/home", "SINGULARITYENV_X": "1", "APPTAINER_NV": "1",
        "APPTAINER_DOCKER_PASSWORD": "s", "APPTAINER_CACHEDIR": "/shared",
    }  # fmt: skip
    found = environment(made_by("apptainer", 1, 4, 5), own, tmp_path)
    assert found == {
        "PATH": "/bin", "https_proxy": "p", "APPTAINER_DOCKER_PASSWORD": "s", "TMPDIR": str(tmp_path),
        "APPTAINER_TMPDIR": str(tmp_path), "APPTAINER_CACHEDIR": f"{tmp_path}/cache",
    }  # fmt: skip
    assert "SINGULARITY_TMPDIR" in environment(made_by("singularity-ce", 4, 1, 0), own, tmp_path)


@pytest.mark.parametrize(
    ("version", "ignored"), [((1, 4, 5), False), ((1, 5, 0), True), ((1, 5, 1), True), ((1, 5, 3), False)]
)
def test_the_versions_whose_packing_corrupts_go_without_proot(tmp_path, version, ignored):
    assert ("APPTAINER_IGNORE_PROOT" in environment(made_by("apptainer", *version), {}, tmp_path)) == ignored


REASONS = [
    ("FATAL: unexpected end of JSON input", True, "half an answer"),
    ("Get https://x/v2/: net/http: TLS handshake timeout", True, "dropped a connection"),
    ("received unexpected HTTP status: 503 Service Unavailable", True, "refuses for the moment"),
    ("toomanyrequests: You have reached your limit", True, "refuses for the moment"),
    ("write /tmp/x: no space left on device", False, "APPTAINER_TMPDIR"),
    ("FATAL ERROR: Failed to create thread", False, "out of memory or threads"),
    ("mksquashfs failed: signal: killed", False, "out of memory or threads"),
    ("manifest unknown", False, "has no such image"),
    ("sh: -c: line 1: unexpected EOF while looking for matching `\"'", False, "looking for matching"),
    ("FATAL:   While performing build: conveyor failed", False, "FATAL:   While performing build: conveyor failed"),
]


@pytest.mark.parametrize(("line", "transient", "words"), REASONS)
def test_the_last_words_say_what_to_do_and_whether_to_try_again(line, transient, words):
    reason = explain(["INFO: begun", line, ""])
    assert (reason.transient, words in reason.words) == (transient, True)


def test_another_node_may_do_where_the_disk_or_the_memory_of_one_does_not():
    assert [line for line, _, _ in REASONS if explain([line]).nodes] == [
        "write /tmp/x: no space left on device",
        "FATAL ERROR: Failed to create thread",
        "mksquashfs failed: signal: killed",
    ]


def test_a_log_keeps_its_beginning_and_its_end_and_says_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(build_log, "HEAD", 100)
    monkeypatch.setattr(build_log, "TAIL", 200)
    lines = [b"%09d\n" % number for number in range(1000)]
    path = tmp_path / "log"
    with path.open("w+b") as file:
        log = build_log.BuildLog(file)
        for number, line in enumerate(lines):
            log.write(line)
            left = path.read_bytes()
            assert len(left) < 1000 and left.startswith(b"".join(lines[: min(number, 9) + 1])) and left.endswith(line)
    head, said, tail = left.decode().split("…")
    assert int(said.split()[0]) == sum(map(len, lines)) - len(head.encode()) - len(tail.encode()) + 2


def test_a_builder_without_last_words_is_said_to_have_none():
    assert explain([]).words == "it said nothing"
    assert explain(["only this"]).words == "only this"


def test_a_sif_file_is_known_by_its_header_its_extent_and_its_architecture(tmp_path):
    path = tmp_path / "x.sif"
    whole = sif("something")
    path.write_bytes(whole)
    check_header(path)
    for data, words in (
        (b"", "is no SIF file: it ends after 0 bytes"),
        (whole[:60], "is no SIF file"),
        (whole[:-1], "is truncated"),
        (b"x" * len(whole), "is no SIF file"),
    ):
        path.write_bytes(data)
        with pytest.raises(BadImage, match=words):
            check_header(path)
    path.write_bytes(whole)
    with pytest.raises(BadImage, match="not for riscv"):
        check_header(path, "riscv")
    with pytest.raises(BadImage, match="no packed root filesystem"):
        parse_list("1 |1 |NONE |32176-32238 |Def.FILE")


SMOKE = "#prorl bash 5.2\n#prorl packages pip\nb==2\na==1\n#prorl packages system\nINFO:  x\nc=3\n#prorl unreadable\n#prorl end\n"


def test_a_trial_tells_versions_and_packages():
    found = parse_smoke(SMOKE)
    assert (found.bash, found.python, found.packages) == ("5.2", "", {"pip": ["a==1", "b==2"], "system": ["c=3"]})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("#prorl end", "", "did not reach the end"),
        ("#prorl bash 5.2", "#prorl bash", "it has bash, but that does not run"),
        ("unreadable\n", "unreadable\ncat: /x: Input/output error\n", "cannot be read: cat: /x"),
    ],
)
def test_a_trial_that_fails_says_at_what(old, new, words):
    with pytest.raises(BadImage, match=words):
        parse_smoke(SMOKE.replace(old, new))


def guarded(folder, *command):
    return guard.guarded(command, folder, os.environ)


def finished(process):
    said = process.stdout.read().decode()
    process.stdin.close()
    return process.wait(), said


def test_a_guard_hands_on_words_and_exit_code_and_leaves_the_folder(tmp_path):
    with guarded(tmp_path, "sh", "-c", "echo said; exit 7") as process:
        assert finished(process) == (7, "said\n")
    with guarded(tmp_path, "sh", "-c", "kill -9 $$") as process:
        assert finished(process) == (128 + 9, "")
    with guarded(tmp_path, str(tmp_path / "nothing")) as process:
        assert finished(process)[0] == 127
    assert tmp_path.is_dir()


def test_a_guard_whose_builder_is_gone_ends_all_below_it_and_removes_the_folder(tmp_path):
    folder = tmp_path / "scratch"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed").chmod(0)
    script = "setsid sh -c 'trap : TERM HUP; sleep 27182' & echo begun; trap : TERM HUP; sleep 27182"
    with guarded(folder, "sh", "-c", script) as process:
        assert process.stdout.readline() == b"begun\n"
        until(lambda: len(asleep()) == 2)
        process.stdin.close()
        started = time.monotonic()
        process.wait()
        assert time.monotonic() - started < 5
    assert asleep() == []
    assert not folder.exists()


def test_a_command_ends_with_a_guard_that_is_killed(tmp_path):
    with guarded(tmp_path, "sleep", "27182") as process:
        until(lambda: len(asleep()) == 1)
        process.kill()
        until(lambda: not asleep())


def asleep():
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "27182"]]
