"""The stateful bash at its limits: time that is up, output without end, processes that stay; and its pure parts."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from prorl_cli.sandbox.boxed import kin, processes
from prorl_cli.sandbox.boxed.kin import Mark
from prorl_cli.sandbox.boxed.processes import Process
from prorl_cli.sandbox.boxed.shell import script
from prorl_cli.sandbox.boxed.shell.ladder import GIVE_UP_S, KILL_S, KILL_SHELL_S, TERMINATE_S, Ladder, Step
from tests.shell_driver import Driver


@pytest.fixture(scope="module")
def driver():
    with Driver() as driver:
        yield driver


@pytest.fixture
def shell(driver, tmp_path):
    return driver.begin(tmp_path)


def running(*words):
    """Processes with exactly these words as command line."""
    found = []
    for process in psutil.process_iter():
        try:
            found += [process] * (process.cmdline() == list(words) and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            continue
    return found


def unique(number=iter(range(1, 10**6))):
    """A number of seconds that no other `sleep` of this machine sleeps."""
    return f"{100000 + os.getpid()}.{next(number)}"


SLACK_S = 5.0
"""Of a machine that does other things, too."""


def until(true, seconds=30):
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up, "it never came true"
        time.sleep(0.02)


# --- time is up


def test_a_timeout_gives_the_partial_output_and_the_shell_goes_on_with_its_state(shell):
    shell.out("x=1; cd /usr")
    result = shell.run("y=2; echo before; sleep 100; echo after", 0.5)
    assert result["outcome"] == "timeout"
    assert result["output"] == "before\n[timed out after 0.5 s; what the command had started was ended]"
    assert result["facts"] == {"exit_code": None, "cwd": "/usr", "restarted": False, "omitted": 0}
    assert result["seconds"] < 0.5 + GIVE_UP_S + SLACK_S
    assert shell.run("echo $? $x $y; pwd; exit 0")["output"].startswith("130 1 2\n/usr\n")


STUBBORN = {
    "a pipeline": "sleep {0} | sleep {0}",
    "a background job of the same command": "sleep {0} & sleep 100",
    "a background job alone is waited for": "sleep {0} & wait",
    "a daemon": "setsid nohup sh -c 'sleep {0} & sleep {0}' >/dev/null 2>&1 & sleep 100",
    "an orphan": "(sleep {0} & ) ; sleep 100",
    "one that ignores interrupts": "sh -c 'trap \"\" INT; sleep {0}'",
    "one that ignores all that can be": "sh -c 'trap \"\" INT TERM HUP; sleep {0} & wait; while :; do sleep {0}; done'",
    "a shell within": "bash -c 'while :; do sleep {0}; done'",
    "a loop of the shell": "while :; do sleep {0} || true; done",
    "a subshell": "(trap '' INT; sleep {0}; sleep 100)",
    "a program that shell has become": "exec sleep {0}",
    "one that is stopped": "sh -c 'kill -STOP $$' & sleep {0} & sh -c 'kill -STOP $$'",
    "a process group of its own": "set -m; sleep {0} & sleep 100",
    "a python that catches": "python3 -c 'import subprocess\nwhile True:\n  try: subprocess.run([\"sleep\", \"{0}\"])\n  except BaseException: pass'",
}  # fmt: skip


@pytest.mark.parametrize("command", STUBBORN.values(), ids=STUBBORN)
def test_a_timeout_leaves_nothing_of_the_command_and_all_of_earlier_ones(shell, command):
    earlier, own = unique(), unique()
    shell.out(f"x=1; sleep {earlier} & (setsid sleep {earlier} &)")
    result = shell.run("x=1; " + command.format(own), 0.4)
    assert result["outcome"] == "timeout", result
    assert result["seconds"] < 0.4 + GIVE_UP_S + SLACK_S
    assert not running("sleep", own)
    assert len(running("sleep", earlier)) == 2
    assert shell.run("echo $x")["output"] == "1\n"


@pytest.mark.parametrize("patience", ["", "trap '' INT; ", "trap '' INT TERM; "])
def test_nothing_of_a_command_runs_after_its_time_is_up_and_its_changes_are_kept(shell, patience):
    earlier = unique()
    shell.out(f"sleep {earlier} &")
    for number in range(5):
        result = shell.run(
            f'mkdir -p ~/{number}; cd ~/{number}; x={number}; sh -c "{patience}sleep 100; sleep 100"; echo never', 0.1
        )
        assert "never" not in result["output"]
        assert shell.out("echo $x; basename $PWD") == f"{number}\n{number}\n"
    assert len(running("sleep", earlier)) == 1


@pytest.mark.parametrize(
    "command",
    [
        "while :; do :; done",
        "trap '' INT TERM; while :; do :; done",
        "kill -STOP $$; sleep 9",
        "trap : INT; while :; do :; done",
    ],
)
def test_a_busy_or_stopped_shell_is_got_back_or_replaced(shell, command):
    shell.out("x=1")
    result = shell.run(f"echo begun; {command}", 0.3)
    assert (result["outcome"], result["output"].splitlines()[0]) == ("timeout", "begun"), result
    assert result["seconds"] < 0.3 + GIVE_UP_S + SLACK_S
    assert shell.run("echo $x")["output"] == "1\n"


def test_what_an_earlier_job_starts_meanwhile_is_not_the_commands(shell):
    child = unique()
    shell.out(f"sh -c 'sleep 0.3; sleep {child}; true' &")
    assert shell.run("sleep 100", 0.8)["outcome"] == "timeout"
    until(lambda: len(running("sleep", child)) == 1)


def test_what_reads_the_shells_lines_costs_the_state_and_never_runs_a_command_twice(shell):
    shell.run("PROMPT_COMMAND='read -r line'")
    assert shell.out("echo on") == "on\n"
    shell.run("trap 'read -r line; read -r line' CHLD; readonly x=1; PS1='$(read -r a; read -r b)'; sleep 0.01")
    time.sleep(0.1)
    results = [shell.run("echo ran >> ~/ran; cat ~/ran", 0.5) for _ in range(3)]
    assert results[-1]["outcome"] == "ok", results
    assert (shell.home / "ran").read_text().count("ran") <= 3


def test_processes_that_multiply_are_ended(shell):
    bomb = "def grow():\n  import os, time\n  while True:\n    try:\n      os.fork()\n    except OSError: pass\n    time.sleep(0.02)\ngrow()"
    mark = unique()
    result = shell.run(f"ulimit -u $(( $(ps -eLf | wc -l) + 60 )); python3 -c '{bomb}' {mark}", 0.6)
    assert result["outcome"] == "timeout"
    assert not [process for process in psutil.process_iter() if mark in _words(process)]
    assert shell.run("echo on")["output"] == "on\n"


def _words(process):
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


# --- processes that stay


def test_a_background_job_does_not_hold_the_answer_back(shell):
    result = shell.run("sleep 1000 & echo started")
    assert (result["output"], result["facts"]["exit_code"]) == ("started\n", 0)
    assert result["seconds"] < 5
    assert shell.out("jobs | wc -l; kill %1; echo on") == "1\non\n"


def test_a_background_job_outlives_the_shell_and_its_output_is_not_cut_off(shell):
    shell.run(
        "(while :; do echo tick; sleep 0.01; done > ~/log; true) & (while :; do echo noise; sleep 0.01; done) & echo $! > ~/pid; exit 1"
    )
    until(lambda: "noise\n" in shell.run("sleep 0.05")["output"])
    before = (shell.home / "log").stat().st_size
    until(lambda: (shell.home / "log").stat().st_size > before)
    shell.out("kill $(cat ~/pid)")


def test_what_a_background_job_prints_between_commands_is_no_commands_output_and_never_stops_it(shell):
    shell.out("(sleep 0.1; head -c 1000000 /dev/zero | tr '\\0' z; echo done > ~/done) &")
    until((shell.home / "done").exists)
    assert shell.out("echo mine") == "mine\n"


def test_background_writers_do_not_disturb_where_a_commands_output_ends(shell):
    shell.out("for i in 1 2 3 4; do (while :; do echo noise; done) & done")
    for number in range(20):
        result = shell.run(f"echo mine{number}")
        assert f"mine{number}\n" in result["output"]
        assert result["seconds"] < 5
    shell.run("kill $(jobs -p)")


def test_a_daemon_that_keeps_the_output_open_does_not_hold_the_answer_back(shell):
    result = shell.run("setsid nohup sleep 1000 & disown; echo on")
    assert result["output"] == "on\n"
    assert result["seconds"] < 5


def test_a_shell_that_waits_uses_no_processor_time(shell):
    bash = psutil.Process(int(shell.out("echo $$")))

    def rests():
        before = bash.cpu_times(), bash.parent().cpu_times()
        time.sleep(0.5)
        return (bash.cpu_times(), bash.parent().cpu_times()) == before

    until(rests)  # the end of the last command may take its time


# --- output without end


def test_a_hundred_megabytes_pass_at_fifty_a_second_within_bounded_memory(shell):
    small = shell.run("true")["peak"]
    results = [shell.run("head -c 100000000 /dev/zero") for _ in range(3)]
    assert {result["facts"]["omitted"] + result["output"].count("\0") for result in results} == {100_000_000}
    pipe = min(shell.run("head -c 100000000 /dev/zero | cat >/dev/null")["seconds"] for _ in range(3))
    assert min(result["seconds"] for result in results) < max(2, 4 * pipe)  # a busy machine's own pipes are slower
    assert results[-1]["peak"] - small < 16 * 1024


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_bounded_and_counted(shell):
    result = shell.run("head -c 1000000000 /dev/zero; echo end", 120)
    kept = result["output"].count("\0")
    assert result["facts"]["omitted"] + kept + len("end\n") == 1_000_000_004
    assert f"[… {result['facts']['omitted']} bytes omitted …]" in result["output"]
    assert result["output"].endswith("end\n")


def test_every_byte_comes_through_in_order(shell):
    result = shell.out(
        r"printf 'a\0b\377\r\nc\r\033[31m\200'; printf '\xc3'; sleep 0.05; printf '\xa9\n'; echo err >&2; echo out"
    )
    assert result == "a\0b\ufffd\r\nc\r\x1b[31m\ufffdé\nerr\nout\n"


def test_the_output_of_what_the_shell_became_is_whole(shell):
    assert shell.run("exec seq 20000")["output"].startswith("".join(f"{n}\n" for n in range(1, 20001)))
    assert shell.run("seq 20000; kill -9 $$")["output"].startswith("".join(f"{n}\n" for n in range(1, 20001)))


def test_a_limit_of_the_box_is_the_outcome_and_the_shell_goes_on(shell):
    shell.out("x=1")
    result = shell.ask({"command": "echo part; sleep 100"}, limit_after_s=0.3)
    assert result["outcome"] == "limit:memory"
    assert result["output"] == "part\n[the box reached its limit of memory; what the command had started was ended]"
    assert result["facts"]["restarted"] is False
    assert shell.out("echo $x") == "1\n"


def test_a_large_state_does_not_slow_every_command(shell):
    shell.out("x=$(head -c 2000000 /dev/zero | tr '\\0' y); true")
    time.sleep(0.3)
    shell.out("true")
    seconds = sorted(shell.run("true")["seconds"] for _ in range(30))
    assert seconds[3] < 0.05  # the machine may be busy
    shell.run("kill -9 $$")
    assert shell.out("echo ${#x}") == "2000000\n"


# --- pure parts


def climb(ladder, until, answered=False, left=True):
    """(seconds, step) for each that does something."""
    steps = [(round(at * 0.1, 1), ladder.step(at * 0.1, answered, left)) for at in range(int(until * 10))]
    return [(at, step) for at, step in steps if step != Step()]


def test_the_ladder_interrupts_terminates_kills_and_gives_up():
    steps = climb(Ladder(0.0), GIVE_UP_S + 0.1)
    assert steps[0] == (0.0, Step(command=signal.SIGINT, shell=signal.SIGINT))
    assert steps[1] == (TERMINATE_S, Step(command=signal.SIGTERM, shell=signal.SIGVTALRM))
    kills = [at for at, step in steps if step.command == signal.SIGKILL]
    assert kills[0] == KILL_S
    assert min(at for at, step in steps if step.shell == signal.SIGKILL) == KILL_SHELL_S
    assert steps[-1] == (GIVE_UP_S, Step(over=True))


def test_the_ladder_spares_a_shell_that_has_answered_and_ends_when_nothing_is_left():
    assert not any(step.shell for _, step in climb(Ladder(0.0), GIVE_UP_S, answered=True))
    assert Ladder(0.0).step(0.0, answered=True, left=False) == Step(over=True)


def process(pid, parent, started):
    return Process(pid=pid, parent=parent, session=0, resident=0, cpu_s=0.0, started=started)


def test_kin_are_the_new_ones_below_the_shell_or_orphaned():
    first, shell, since = 1, 10, Mark(ticks=100, pid=50)
    living = [
        process(1, 0, 1), process(10, 1, 5), process(20, 10, 90), process(30, 1, 80),  # the box, the shell, a job, a daemon
        process(51, 10, 100), process(52, 51, 101), process(53, 1, 102), process(54, 53, 200),  # the command's
        process(60, 20, 150), process(61, 60, 151), process(62, 30, 152),  # of the old job and the old daemon
        process(49, 10, 100), process(70, 999, 150),  # of the same tick but earlier; of no known parent
    ]  # fmt: skip
    assert sorted(kin.of_call(living, first, shell, since)) == [51, 52, 53, 54]
    assert sorted(kin.of_call([*living, process(80, 0, 200)], first, 0, since)) == [53, 54]


def test_the_list_of_processes_tells_what_has_just_been_started():
    mark = kin.mark()
    assert not mark.precedes(processes.read(os.getpid()))
    child = psutil.Popen(["sleep", "100"])
    try:
        assert mark.precedes(processes.read(child.pid))
        assert kin.of_call(processes.living(), os.getpid(), 0, mark) == [child.pid]
        assert processes.parent_of(child.pid) == os.getpid()
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read(child.pid) is None
    assert processes.parent_of(child.pid) == os.getpid(), "a dead one has a parent until it is waited for"
    child.wait()
    assert processes.parent_of(child.pid) == 0


@pytest.mark.parametrize("body", [b"", b"x", b"n done", b"n done x /", b"n done -1 /", b"n gone 1 /", b"\xff\xfe"])
def test_what_is_no_record_is_none(body):
    assert script.read_record(body) is None


def test_a_record_has_the_folder_as_it_is():
    assert script.read_record(b"n done 5 /a b\n\xff") == script.Record(
        nonce="n", word="done", exit_code=5, folder="/a b\n\udcff"
    )


def test_no_file_of_the_shell_needs_more_than_the_standard_library_and_python_3_10():
    folder = Path(script.__file__).parent
    for path in folder.glob("*.py"):
        compile(path.read_text(), str(path), "exec")
        imported = [line.split()[1] for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not [
            name for name in imported if "." in name and not name.startswith(("prorl_cli.sandbox.boxed", "collections"))
        ]
