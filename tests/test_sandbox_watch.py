"""What a box's processes may use together: who has to go when a limit is passed, and what counts."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli import nodelocal
from prorl_cli.sandbox.boxed import processes
from prorl_cli.sandbox.boxed.processes import Process
from prorl_cli.sandbox.boxed.watch import Limits, Usage, Watch, judge, size_below, victims

LIMITS = Limits(memory=100, cpu=10.0, processes=4, disk=1000)
SHELL, MAKE, COMPILER, DAEMON = 10, 11, 12, 13
TREE = [
    Process(pid=pid, parent=parent, session=SHELL, resident=resident, cpu_s=0.0, started=0)
    for pid, parent, resident in ((SHELL, 1, 5), (MAKE, SHELL, 10), (COMPILER, MAKE, 40), (DAEMON, 1, 20))
]
SIZES = {process.pid: process.resident for process in TREE}


def usage(**found):
    return Usage(**{"living": TREE, "memory": 0, "cpu_s": 0.0, "disk": 0, "disk_grew": False} | found)


def test_a_box_at_each_of_its_limits_has_passed_none():
    assert judge(usage(memory=100, cpu_s=9.9, disk=1000, disk_grew=True), LIMITS) == ""


@pytest.mark.parametrize(
    ("found", "what"),
    [
        ({"memory": 101}, "memory"), ({"cpu_s": 10.0}, "cpu"), ({"disk": 1001, "disk_grew": True}, "disk"),
        ({"living": [*TREE, TREE[0]]}, "processes"),
    ],
)  # fmt: skip
def test_the_limit_that_was_passed_is_named(found, what):
    assert judge(usage(**found), LIMITS) == what


def test_a_full_disk_that_nothing_fills_further_can_be_tidied():
    assert judge(usage(disk=2000, disk_grew=False), LIMITS) == ""


def test_memory_is_won_back_from_the_largest_process_and_what_it_started():
    assert victims("memory", TREE, [SHELL], SIZES) == {COMPILER}
    assert victims("memory", TREE, [SHELL], SIZES | {MAKE: 50}) == {MAKE, COMPILER}


def test_a_flood_of_processes_is_ended_before_the_shell_that_keeps_the_state():
    assert victims("processes", TREE, [SHELL], SIZES) == {MAKE, COMPILER, DAEMON}


def test_without_processor_time_everything_goes():
    assert victims("cpu", TREE, [SHELL], SIZES) == {SHELL, MAKE, COMPILER, DAEMON}


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_a_branch_is_its_root_and_all_whose_line_of_parents_leads_there(parents):
    made = [Process(pid=n + 1, parent=p, session=0, resident=0, cpu_s=0.0, started=0) for n, p in enumerate(parents)]
    parent = {process.pid: process.parent for process in made}

    def leads_there(pid, seen=()):
        return pid == 1 or (pid in parent and pid not in seen and leads_there(parent[pid], (*seen, pid)))

    assert processes.branch(made, {1}) == {1} | {pid for pid in parent if leads_there(pid)}


def test_shared_pages_count_once_and_what_a_process_holds_is_seen():
    """Two children of a large process: what all three hold together is little more than what one does."""
    code = "import os, sys, time\nkept = bytearray(80 << 20)\nos.fork(); os.fork()\nprint('up', flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            for _ in range(4):
                child.stdout.readline()
            pids = [child.pid, *(process.pid for process in processes.below(child.pid))]
            assert len(pids) == 4
            assert 80 << 20 < sum(map(processes.proportional, pids)) < 160 << 20
        finally:
            os.killpg(child.pid, 9)


def test_what_was_written_is_added_up_past_links_and_folders_that_nobody_may_read(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(os.urandom(1 << 20))
    (tmp_path / "link").symlink_to("/")
    (tmp_path / "loop").symlink_to(".")
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        assert 1 << 20 <= size_below(folder) < (1 << 20) + 65536
    finally:
        os.close(folder)


def test_a_watch_sleeps_until_it_is_woken_and_remembers_who_has_ended():
    watch = Watch(LIMITS)
    assert watch.due == float("inf")
    watch.wake(100.0)
    assert 100.0 < watch.due < 101.0
    watch.reaped(9.0)
    assert watch.cpu_left_s == 1.0
    watch.reaped(9.0)
    assert watch.cpu_left_s == 0.0


def test_what_lies_too_deep_to_be_added_up_is_more_than_any_limit(tmp_path):
    bottom = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=bottom)
        below = os.open("deeper", os.O_RDONLY, dir_fd=bottom)
        os.close(bottom)
        bottom = below
    os.close(bottom)
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        assert size_below(folder) == float("inf")
    finally:
        os.close(folder)
        nodelocal.remove(tmp_path)
