"""The python of a box keeps its state, tells all that a cell says, and survives whatever a cell does to it."""

import ast
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from prorl_cli.sandbox.boxed.interpreter import worker
from prorl_cli.sandbox.boxed.tools.python import open_session
from tests.box_driver import Driver


def program(folder, *words, first=""):
    """A folder whose `python3` is a command line."""
    folder.mkdir()
    (folder / "python3").write_text(f'#!/bin/sh\n{first}\nexec {" ".join(words)} "$@"\n')
    (folder / "python3").chmod(0o755)
    return folder


def path_of(kind, folder):
    """A PATH under which a session finds the image's Python with IPython, without it, or none that it could use."""
    if kind == "own":
        return program(folder / "bin", "/bin/false")
    return program(folder / "bin", sys.executable, *([] if kind == "ipython" else ["-S"]))


@contextmanager
def opened(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{path_of(kind, tmp_path)}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    home = tmp_path / "home"
    home.mkdir()
    with Driver(open_session, home) as driver:
        yield driver


@pytest.fixture(params=["plain", "own", "ipython"])
def python(request, tmp_path, monkeypatch):
    with opened(request.param, tmp_path, monkeypatch) as driver:
        yield driver


@pytest.fixture
def plain(tmp_path, monkeypatch):
    with opened("plain", tmp_path, monkeypatch) as driver:
        yield driver


def facts(result):
    return {name: value for name, value in result["facts"].items() if name != "cwd"}


def test_the_worker_is_plain_python_of_3_8():
    ast.parse(Path(worker.__file__).read_text(), feature_version=(3, 8))


def test_a_session_keeps_names_imports_and_folder_and_shows_like_a_prompt(python, tmp_path):
    assert python(code="import math\nx = 5\nprint('hi')\nx * 2")["output"] == "hi\n10\n"
    assert python(code="_ + x + math.floor(1.5)")["output"] == "16\n"
    assert python(code="def f():\n    return 'é\\0€'\n")["output"] == ""
    assert python(code="f()")["output"] == "'é\\x00€'\n"
    assert python(code="None")["output"] == ""
    assert python(code="")["output"] == ""
    assert python(code="import os; os.mkdir('d'); os.chdir('d')")["facts"] == {"cwd": str(tmp_path / "home" / "d")}
    assert python(code="os.getcwd()")["output"] == f"{str(tmp_path / 'home' / 'd')!r}\n"
    assert python(code="from __future__ import annotations")["outcome"] == "ok"
    assert python(code="def g(a: nothing): pass\ng.__annotations__")["output"] == "{'a': 'nothing'}\n"
    assert python(code="import pickle; pickle.loads(pickle.dumps(f))()")["output"] == "'é\\x00€'\n"


def test_an_exception_is_an_error_with_the_cells_own_traceback_and_the_session_goes_on(python):
    result = python(code="x = 1\ndef f():\n    return x / 0\nf()")
    assert result["outcome"] == "error" and facts(result) == {"error": "ZeroDivisionError"}
    assert "return x / 0" in result["output"] and result["output"].endswith("ZeroDivisionError: division by zero\n")
    assert "<prorl>" not in result["output"] and "\x1b" not in result["output"]
    broken = python(code="if x\n")
    assert broken["outcome"] == "error" and "SyntaxError" in broken["output"] and "<prorl>" not in broken["output"]
    assert python(code="x")["output"] == "1\n"


def test_what_programs_and_c_print_is_caught_in_order(python):
    result = python(
        code="""
import ctypes, os, subprocess, sys
print('1'); os.system('echo 2'); print('3', file=sys.stderr); subprocess.run(['/bin/echo', '4'])
os.write(2, b'5\\n'); ctypes.CDLL(None).puts(b'6') and None
"""
    )
    lines = result["output"].split()
    assert [line for line in lines if line.isdigit()][-6:] == ["1", "2", "3", "4", "5", "6"]


def test_bytes_that_are_no_text_and_characters_cut_in_two_are_told(python):
    code = "import os\nfor piece in (b'\\xe2', b'\\x82\\xac', b'\\xff\\0\\r\\n'): os.write(1, piece) and None"
    assert python(code=code)["output"] == "€\ufffd\0\r\n"
    assert python(code="print('\\udcff')")["output"] == "\\udcff\n"
    assert python(code="'\ud800'")["outcome"] in ("ok", "error")


def test_a_hundred_megabytes_keep_both_ends_and_the_count(plain):
    began = time.monotonic()
    result = plain(code="print('a' + 'x' * 10**8 + 'z')", timeout_s=60)
    assert time.monotonic() - began < 40
    omitted = 10**8 + 3 - 2**17
    assert result["facts"]["omitted"] == omitted
    assert result["output"].startswith("axxx") and result["output"].endswith("xxxz\n")
    assert f"[… {omitted} bytes omitted …]" in result["output"]


def test_input_and_whatever_reads_ends_at_once_in_words(python):
    result = python(code="input('name? ')")
    assert result["outcome"] == "error" and "nobody types" in result["output"]
    assert python(code="import sys, os; sys.stdin.read(), os.system('cat')")["output"] == "('', 0)\n"
    assert python(code="import getpass; getpass.getpass()", timeout_s=5)["outcome"] == "error"


def test_a_timeout_gives_the_partial_output_and_keeps_the_state(python):
    python(code="import time; x = 7")
    began = time.monotonic()
    result = python(code="print('begun')\ntime.sleep(60)", timeout_s=1.0)
    assert time.monotonic() - began < 5
    assert result["outcome"] == "timeout" and result["output"].startswith("begun\n")
    assert "KeyboardInterrupt" in result["output"] and "not finished within 1 s" in result["output"]
    assert python(code="x")["output"] == "7\n"


def test_at_a_timeout_the_programs_that_a_cell_waits_for_end_and_earlier_ones_go_on(plain):
    plain(code="import os, subprocess\nold = subprocess.Popen(['sleep', '60'])")
    plain.idle(0.05)
    result = plain(code="new = subprocess.Popen(['sleep', '61'])\nos.system('echo go; sleep 62')\nx = 1", timeout_s=1.0)
    assert result["outcome"] == "timeout" and "go" in result["output"]
    assert plain(code="x, old.poll()")["output"] == "(1, None)\n"
    living = [child.as_dict(["cmdline"])["cmdline"] for child in psutil.Process().children(recursive=True)]
    assert not [words for words in living if {"61", "62"} & set(words or ())]


@pytest.mark.parametrize(
    "deaf",
    [
        "while True:\n  try:\n    time.sleep(60)\n  except BaseException: pass",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_a_cell_that_does_not_heed_the_interrupt_is_killed_with_its_programs(plain, deaf):
    plain(code="")  # the start of an interpreter takes its time on a busy machine
    began = time.monotonic()
    result = plain(
        code=f"import os, signal, time\nprint('begun')\nos.system('setsid sleep 63 &')\n{deaf}", timeout_s=1.0
    )
    assert 2 < time.monotonic() - began < 10
    assert result["outcome"] == "timeout" and result["facts"] == {"signal": "SIGKILL", "restarted": True}
    assert result["output"].startswith("begun\n") and "without its variables" in result["output"]
    assert plain(code="1 + 1")["output"] == "2\n"
    assert plain(code="print(time)")["facts"]["error"] == "NameError"


EXITS = [
    ("exit()", 0), ("quit()", 0), ("import sys; sys.exit(3)", 3), ("raise SystemExit('words')", 1),
]  # fmt: skip


def test_a_cell_that_exits_ends_and_the_session_goes_on(python):
    python(code="x = 1")
    for leave, code in EXITS:
        result = python(code=f"print('last')\n{leave}\nprint('never')")
        assert facts(result) == {"exit_code": code}
        assert result["outcome"] == ("ok" if code == 0 else "error")
        assert result["output"].startswith("last\n") and "never" not in result["output"]
        assert python(code="x")["output"] == "1\n"


DEATHS = [
    ("import os; os._exit(4)", {"exit_code": 4}),
    ("import ctypes; ctypes.string_at(0)", {"signal": "SIGSEGV"}),
    ("import os; os.kill(os.getpid(), 9)", {"signal": "SIGKILL"}),
    ("import os; os.closerange(3, 5000)", {"exit_code": 1}),
]


def test_a_cell_that_kills_its_interpreter_is_an_event_and_the_next_one_has_another(python):
    for death, facts_of_it in DEATHS:
        result = python(code=f"x = 1\nprint('last', flush=True)\n{death}")
        assert result["outcome"] == "error" and facts(result) == facts_of_it | {"restarted": True}
        assert result["output"].startswith("last\n") and "without its variables" in result["output"]
        assert python(code="'x' in globals()")["output"] == "False\n"


def test_an_interpreter_that_ends_between_two_calls_is_told_with_the_next(plain):
    plain(code="x = 1")
    os.kill(plain.session.root, signal.SIGKILL)
    plain.idle(0.2)
    assert plain.session.root == 0
    result = plain(code="'x' in globals()")
    assert result["facts"]["restarted"] is True and result["output"].endswith("\nFalse\n")
    assert "died of SIGKILL since the last call" in result["output"]
    assert "restarted" not in plain(code="1")["facts"]


def test_its_name_is_not_python_s(plain):
    assert plain(code="open('/proc/self/comm').read()")["output"] == "'prorl-cells\\n'\n"


def test_it_starts_anew_when_asked(python):
    python(code="x = 1")
    result = python(code="'x' in globals()", restart=True)
    assert result["facts"]["restarted"] is True and result["output"].endswith("False\n")
    python(code="x = 1")
    assert python(restart=True)["outcome"] == "ok"
    assert python(code="'x' in globals()")["output"] == "False\n"


@pytest.mark.parametrize("arguments", [{}, {"code": 1}, {"code": "1", "more": 1}, {"restart": "yes"}, {"code": None}])
def test_other_arguments_are_refused_in_words(plain, arguments):
    result = plain(**arguments)
    assert result["outcome"] == "error" and "arguments must be" in result["output"]


def test_a_fork_in_a_cell_does_not_answer(python):
    result = python(
        code="import os\npid = os.fork()\nif pid: print(os.waitstatus_to_exitcode(os.wait()[1]))\nelse: print('child')"
    )
    assert sorted(result["output"].split()) == ["0", "child"]
    result = python(code="if os.fork(): print(os.waitstatus_to_exitcode(os.wait()[1]))\nelse: raise SystemExit(5)")
    assert result["output"] == "5\n"
    python(code="import time\nif os.fork() == 0: time.sleep(0.2)")
    for number in range(5):
        assert python(code=f"time.sleep(0.1)\n{number}")["output"] == f"{number}\n"


HARMS = [
    "import sys; sys.stdout = sys.stderr = None",
    "import io, sys; sys.stdout = io.StringIO()",
    "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "import sys; sys.stdout.detach()",
    "import os; os.close(0); os.close(1); os.close(2)",
    "import os; os.dup2(os.open('/dev/null', os.O_RDWR), 1)",
    "import builtins; builtins.print = builtins.len = builtins.isinstance = builtins.repr = None",
    "import builtins; del builtins.print, builtins.len",
    "import os; os.read = os.write = os.getpid = os._exit = None",
    "import sys; sys.settrace(lambda *_: 1 / 0)",
    "import sys; sys.displayhook = sys.excepthook = None",
    "import sys; sys.modules.pop('__main__', None)",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import sys; sys.argv = None; sys.path = []",
    "__builtins__ = None",
]


def test_what_a_cell_does_to_its_process_does_not_break_the_next_one(python):
    for harm in HARMS:
        python(code=harm)
        result = python(code="print(len([1, 2]))\nimport os\nos.system('echo 3')")
        assert [line for line in result["output"].split("\n") if line.isdigit()] == ["2", "3", "0"], (harm, result)
        assert python(code="import time; time.sleep(60)", timeout_s=0.1)["outcome"] == "timeout"


@pytest.mark.parametrize("kind", ["ValueError", "TimeoutError", "KeyboardInterrupt", "SystemExit"])
def test_a_signal_handler_that_a_cell_leaves_behind_raises_into_the_void(plain, kind):
    plain(
        code=f"import signal\ndef late(*_): raise {kind}('late')\nsignal.signal(signal.SIGALRM, late)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1) and None"
    )
    plain.idle(0.3)
    result = plain(code="1 + 1")
    assert result["outcome"] == "ok" and result["output"].endswith("2\n") and f"{kind}: late" in result["output"]


def test_modules_of_any_name_in_the_folder_do_not_keep_it_from_starting(python, tmp_path):
    for name in ("ast", "contextlib", "IPython", "linecache", "os", "signal", "traceback", "traitlets", "types"):
        (tmp_path / "home" / f"{name}.py").write_text("raise RuntimeError('not the real one')")
    assert python(code="1 + 1")["output"] == "2\n"
    (tmp_path / "home" / "own.py").write_text("x = 3")
    assert python(code="import own; own.x")["output"] == "3\n"


def test_a_removed_home_does_not_keep_it_from_starting(python, tmp_path):
    (tmp_path / "home").rmdir()
    assert python(code="1 + 1")["output"] == "2\n"


def test_an_interpreter_that_takes_long_to_start_is_waited_for_by_the_next_call(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{program(tmp_path / 'bin', sys.executable, first='sleep 1')}:/usr/bin:/bin")
    with Driver(open_session, tmp_path) as python:
        result = python(code="x = 1", timeout_s=0.2)
        assert result["outcome"] == "timeout" and "the cell was not run" in result["output"]
        assert python(code="'x' in globals()")["output"] == "False\n"


def test_what_threads_and_programs_say_later_comes_with_the_next_answer(plain):
    plain(
        code="import subprocess, threading\nthreading.Timer(0.1, lambda: print('thread')).start()\njob = subprocess.Popen('sleep 0.2; echo job', shell=True)"
    )
    plain.idle(0.5)
    assert plain(code="'cell'")["output"] == "thread\njob\n'cell'\n"


def test_a_background_thread_that_never_stops_talking_holds_nothing_up(plain):
    plain(
        code="import threading\nstop = False\ndef talk():\n    while not stop: print('x' * 1000)\nthreading.Thread(target=talk, daemon=True).start()"
    )
    plain.idle(0.3)
    result = plain(code="stop = True", timeout_s=10)
    assert result["outcome"] == "ok" and result["facts"].get("omitted", 0) > 0
    plain.idle(0.1)
    plain(code="1")
    assert plain(code="2")["output"] == "2\n"


def test_a_worker_that_says_nonsense_is_replaced(plain):
    result = plain(
        code="import os, socket\nfor fd in map(int, os.listdir('/proc/self/fd')):\n  try: socket.socket(fileno=os.dup(fd)).send(b'\\xff' * 100)\n  except OSError: pass"
    )
    assert result["outcome"] == "error" and result["facts"]["restarted"] is True
    assert plain(code="1")["output"] == "1\n"


def test_an_answer_with_another_number_is_nobodys(plain):
    forged = "b'\\0'.join([b'999', b'ok', b'', b'/'])"
    result = plain(
        code=f"import os, socket\nbody = {forged}\nframe = len(body).to_bytes(4, 'big') + body\nfor fd in map(int, os.listdir('/proc/self/fd')):\n  try: socket.socket(fileno=os.dup(fd)).send(frame)\n  except OSError: pass\nprint('mine')"
    )
    assert result["output"] == "mine\n"
    assert plain(code="1")["output"] == "1\n"


def test_a_cell_of_megabytes_arrives(plain):
    text = "é" * 1_500_000
    assert plain(code=f"len('{text}')")["output"] == "1500000\n"


def test_a_limit_of_the_box_ends_the_cell_with_its_output(plain):
    plain(code="")
    call = plain.session.call({"code": "import time\nprint('begun')\ntime.sleep(60)"}, time.monotonic() + 30)
    plain.attend(call, 1.0)
    call.limited("processes")
    result = plain.drive(call, 10)
    assert result["outcome"] == "limit:processes" and result["output"].startswith("begun\n")
    assert "limit of processes" in result["output"]


def test_a_python_older_than_3_8_gives_way_to_prorls_own(tmp_path, monkeypatch):
    old = tmp_path / "old.py"
    old.write_text("import sys\nsys.version_info = (3, 6)\nexec(sys.argv[2])\n")
    folder = program(tmp_path / "bin", sys.executable, str(old))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with Driver(open_session, tmp_path) as python:
        assert python(code="import sys; sys.version_info[:2]")["output"] == f"{sys.version_info[:2]}\n"
        assert python(code="1")["output"] == "1\n"


def test_a_warm_cell_takes_less_than_two_milliseconds(plain):
    plain(code="x = 1")
    times = []
    for _ in range(300):
        began = time.perf_counter()
        plain(code="x += 1")
        times.append(time.perf_counter() - began)
    assert sorted(times)[30] < 0.002  # the machine may be busy with other tests


def test_the_shell_is_ipython_where_the_image_has_it(tmp_path, monkeypatch):
    with opened("ipython", tmp_path, monkeypatch) as python:
        assert (
            python(code="!echo hi\n%cd -q /tmp\nimport asyncio\nawait asyncio.sleep(0, 'done')")["output"]
            == "hi\n'done'\n"
        )
        assert python(code="%pwd")["output"] == "'/tmp'\n"
        assert python.session.child.name.startswith("ipython 3.")
    assert not (tmp_path / "home" / ".ipython").exists()


@pytest.mark.parametrize("kind", ["plain", "own"])
def test_the_shell_is_pythons_own_where_there_is_no_ipython(kind, tmp_path, monkeypatch):
    with opened(kind, tmp_path, monkeypatch) as python:
        python(code="")
        assert python.session.child.name.startswith("python 3.")
