"""The stateful bash: what a command leaves behind is there for the next, whatever ended the shell in between."""

import shutil
import time

import psutil
import pytest

from prorl_cli.sandbox.boxed.shell.script import WHOLE
from tests.shell_driver import Driver


@pytest.fixture(scope="module")
def driver():
    with Driver() as driver:
        yield driver


@pytest.fixture
def shell(driver, tmp_path):
    return driver.begin(tmp_path)


STATE = r"""
mkdir -p 'a folder'; cd 'a folder'; plain='two
lines'; export exported=yes; declare -A map=([key with space]=value); declare -i number=6*7; list=(1 "2 3")
readonly fixed=rock; say() { echo "said $1"; }; export -f say; alias greet='echo hello'; umask 027; set -o pipefail; shopt -s nullglob
"""
LOOK = r"""
pwd | sed 's/.*home//'; echo "$plain"; bash -c 'echo $exported; say it'; echo "${map[key with space]} $number ${list[1]} $fixed"
greet; umask; set -o | grep pipefail | tr -d ' \t'; echo nothing*here; (fixed=x) 2>&1
"""
SEEN = "/a folder\ntwo\nlines\nyes\nsaid it\nvalue 42 2 3 rock\nhello\n0027\npipefailon\n\nbash: fixed: readonly variable\n"


def test_directory_variables_functions_and_options_are_there_in_the_next_command(shell):
    shell.out(STATE)
    assert shell.run(LOOK)["output"].startswith(SEEN)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("exit 7", 7), ("set -e; false", 1), ("exec sh -c 'exit 9'", 9), ("kill -9 $$", 137),
        ("set -euo pipefail; false | true; echo no", 1), ("trap 'echo bye' EXIT; exit 3", 3), ("exec 0</dev/null; exit 4", 4),
        ("kill -HUP $$; sleep 1", 129),
    ],
)  # fmt: skip
def test_whatever_ends_the_shell_another_has_its_state(shell, ending, code):
    shell.out(STATE)
    result = shell.run(ending)
    assert result["outcome"] == "ok", result
    assert (result["facts"]["exit_code"], result["facts"]["restarted"]) == (code, True), result
    assert "a new one has its directory, variables and functions" in result["output"]
    looked = shell.run(LOOK)
    assert looked["output"].startswith(SEEN), looked
    assert looked["facts"]["restarted"] is False


@pytest.mark.parametrize("ending", ["exit 0", "set -e; false", "set -u; set -e; (exit 4)"])
def test_what_the_last_command_of_a_shell_changed_is_kept_too(shell, ending):
    shell.run(f"mkdir -p deep; cd deep; late=word; {ending}")
    assert shell.out("echo $late; basename $PWD") == "word\ndeep\n"


def test_errexit_that_ended_a_shell_does_not_end_the_next(shell):
    assert shell.run("set -e; false")["facts"]["restarted"]
    assert shell.run("false; echo on")["output"] == "on\n"


def test_the_exit_code_is_the_next_commands_question_mark(shell):
    assert shell.run("(exit 42)")["output"] == "[exit code 42]"
    assert shell.out("echo $?") == "42\n"
    assert shell.run("set -e; (exit 9)")["facts"]["exit_code"] == 9
    assert shell.out("echo $?") == "9\n"


def test_a_virtual_environment_stays_active(shell):
    shell.out(
        'mkdir -p v/bin; printf \'deactivate() { :; }\\nVIRTUAL_ENV=v PATH="$PWD/v/bin:$PATH" PS1="(v) $PS1"\' > v/bin/activate'
    )
    shell.out("printf '#!/bin/sh\\necho mine' > v/bin/python; chmod +x v/bin/python; source v/bin/activate")
    assert shell.out("python; echo ${PS1%% *}; type -t deactivate") == "mine\n(v)\nfunction\n"
    shell.run("exit 1")
    assert shell.out("python; type -t deactivate") == "mine\nfunction\n"


HOSTILE = {
    "a changed prompt": "PS1='$ '; PS2=; PROMPT_COMMAND='echo prompt'; PS0='before'",
    "a changed separator": "IFS=0123456789abcdef",
    "set -u": "set -u",
    "set -e": "set -e",
    "tracing": "set -x; set -v",
    "noclobber": "set -C",
    "no globs": "set -f",
    "posix": "set -o posix",
    "job control": "set -m",
    "a debug trap": "trap 'echo trapped >/dev/null' DEBUG ERR RETURN",
    "functions of the names that are used": "printf() { echo no; }; trap() { :; }; cd() { :; }; declare() { :; }; echo() { command echo \"$@\"; }",
    "aliases of the names that are used": "alias .='echo no' builtin=no printf=no declare=no trap=no true=no",
    "the output closed": "exec >/dev/null 2>&1",
    "all closed": "exec 0>&- 1>&- 2>&-",
    "its own descriptors taken": "exec 99>/dev/null 10</dev/null",
    "no home": "unset HOME PATH; PATH=/usr/bin:/bin",
    "no variables": "unset PWD OLDPWD; unset -v $(compgen -v | grep -v kept) 2>/dev/null; PATH=/usr/bin:/bin",
    "a terminal set to raw": "stty raw -echo; stty raw -echo < /dev/tty",
    "unbalanced quotes": "echo 'one",
    "an unfinished block": "if true; then",
    "an unbalanced brace": "}",
    "return": "return 5",
    "an interrupt": "kill -INT $$",
    "a terminate": "kill -TERM $$",
    "an ignored interrupt": "trap '' INT TERM",
    "an unset variable": "set -u; echo $nothing",
    "a fatal expansion": "echo ${nothing:?is unset}; echo never",
    "a readonly assignment": "readonly R=1; R=2; echo never",
    "history expansion": "set -H; echo \"hi!!\"",
    "an environment too large": "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x)",
    "a null command": "",
    "only a comment": "# nothing",
    "a background job that ends": "sleep 0.01 & disown",
    "a stopped shell": "(sleep 0.05; kill -CONT $$) & kill -STOP $$",
    "the marker's form": "printf '%s done 0 /\\0' $RANDOM; printf '\\0aaaa done 0 /\\0' >&0",
}  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_the_next_command_works_after(shell, hostile):
    shell.out("kept=word")
    result = shell.run(hostile, 10)
    assert result["outcome"] == "ok", result
    assert result["seconds"] < 5
    after = shell.run('unalias -a; unset -f echo; command echo "$kept"; exit 5', 10)
    assert "word" in after["output"].splitlines(), (result, after)
    assert after["facts"]["exit_code"] == 5, after
    assert shell.run('unset -f echo; command echo "$kept"')["output"].splitlines()[-1] == "word"


def test_options_of_tracing_show_the_command_alone(shell):
    shell.run("set -x")
    assert shell.out("echo seen") == "++ echo seen\nseen\n"


def test_output_with_a_record_in_it_is_output(shell):
    text = "begun \0 done 0 /\0\x1b]done\x07\n"
    assert shell.out("printf 'begun \\0 done 0 /\\0\\033]done\\007\\n'") == text


@pytest.mark.parametrize(
    "command", ["cat", "read x; echo got $x", "python3 -c 'import sys; sys.stdin.read()'", "head -1", "sudo -S true"]
)
def test_a_program_that_reads_finds_the_end_of_input(shell, command):
    result = shell.run(command, 10)
    assert result["outcome"] == "ok"
    assert result["seconds"] < 5


def test_a_program_that_asks_the_terminal_finds_none(shell):
    assert (
        "No such device"
        in shell.run("cat /dev/tty; python3 -c 'import getpass; getpass.getpass()' </dev/null", 10)["output"]
    )


def test_a_here_document_of_ten_megabytes_is_one_command(shell):
    line = '$not `expanded` "quoted" \' !! \\\n'
    body = line * (10 * 2**20 // len(line))
    assert (
        shell.out(f"cat > big <<'END'\n{body}END\nwc -c < big; md5sum < big | cut -c1-4; x=5")[:9] == f"{len(body)}\n"
    )
    assert (shell.home / "big").read_text() == body
    assert shell.out("echo $x") == "5\n"


VALID = {
    "here-documents in a row": ("cat <<A; cat <<-'B'\n1\nA\n\t2 $x\n\tB", "1\n2 $x\n"),
    "a here-document in a substitution": ("echo $(cat <<X\n(')\nX\n)", "(')\n"),
    "a case in a substitution": ("echo $(case a in a) echo one;; (b) echo two;; esac)", "one\n"),
    "process substitution": ("diff <(echo a) <(echo a) && echo same", "same\n"),
    "arithmetic, tests and braces": ("for ((i=0; i<3; i++)); do [[ $i =~ [02] ]] && echo {a,b}$((i*2)); done | tail -1", "a4 b4\n"),
    "a function and a here-string": ("f() { read -r a b <<< \"$1\"; echo \"$b\"; }; f 'x y  z'", "y  z\n"),
    "quotes of all kinds": ("echo \"a'b\"'c\"d'$'\\te'\\ f", "a'bc\"d\te f\n"),
    "lines joined": ("echo a \\\n  b; echo c", "a b\nc\n"),
    "what looks like a flag": ("-e 2>/dev/null; echo on", "on\n"),
    "a here-document without its end": ("cat 2>/dev/null <<END\ntext", "text\n"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "printed"), VALID.values(), ids=VALID)
def test_whatever_bash_accepts_is_accepted(shell, command, printed):
    output = shell.run(command)["output"]
    assert output == printed or ("END" in command and output.endswith(printed)), output


def test_a_directory_that_is_deleted_is_no_harm(shell):
    shell.out("mkdir gone; cd gone; rmdir ../gone")
    assert shell.run("echo here; x=1; exit 2")["output"].startswith("here\n")
    assert shell.out("echo $x; cd; ls -d .") == "1\n.\n"


def test_the_private_folder_may_be_deleted_or_be_in_the_way(shell):
    shell.out("x=1")
    shutil.rmtree(shell.private)
    assert shell.out("echo $x; y=2") == "1\n"
    shutil.rmtree(shell.private)
    shell.private.write_text("in the way")
    assert shell.out('echo $x $y; z="it\'s\n3"; echo \'é \\ \' "$z"') == "1 2\né \\  it's\n3\n"
    assert (
        shell.run(f"echo {'x' * 20000}")["output"]
        == "bash: there is no space left for so long a command\n[exit code 1]"
    )
    result = shell.run("exit 1")
    assert "without its variables" in result["output"]
    assert shell.out("echo [$x]") == "[]\n"


def test_a_command_file_that_is_a_fifo_or_folder_is_no_trap(shell):
    for trap in ("mkfifo", "mkdir", "ln -s /etc/passwd"):
        shell.out(f"rm -rf {shell.private}/*; {trap} {shell.private}/command")
        assert shell.out("echo on") == "on\n"


def state_with(shell, words):
    """The file that holds the state with these words; it is written while the answer is on its way."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        for path in shell.private.glob("state-[01]"):
            text = path.read_bytes()
            if words in text and text.endswith(WHOLE):
                return path
        time.sleep(0.005)
    raise AssertionError(f"no state has {words}")


def test_a_half_written_state_is_not_taken_over(shell):
    shell.out("x=1")
    shell.out("y=2")
    shell.out("z=3")
    state_with(shell, b'z="3"').write_text("x=99\nkill -9 $$\n")
    shell.run("kill -9 $$")
    assert shell.out("echo $x $y") == "1 2\n"


def test_a_state_that_ends_every_shell_is_given_up(shell):
    shell.out("y=2")
    state_with(shell, b'y="2"')
    for state in shell.private.glob("state-[01]"):
        state.write_text("kill -9 $$\n# whole\n")
    killed, after = shell.run("kill -9 $$"), shell.run("echo up")
    assert killed["facts"]["restarted"]
    assert after["output"].startswith("up\n"), after
    assert "without its variables" in killed["output"] + after["output"], "said once, as soon as it is known"


def test_a_new_shell_can_be_asked_for(shell):
    shell.out("x=1; cd /; sleep 1000 & echo $! > ~/pid")
    result = shell.ask({"command": "echo [$x]; pwd", "restart": True})
    assert result["output"] == f"[]\n{shell.home}\n"
    assert shell.run(f"kill -0 $(cat {shell.home}/pid)")["facts"]["exit_code"] == 1
    assert shell.ask({"restart": True})["output"] == f"[a new shell begins in {shell.home}]"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"command": 5}, {"command": "a\0b"}, {"command": "ls", "x": 1}, {"command": "ls", "restart": "yes"}],
)
def test_what_is_no_command_is_an_error_and_runs_nothing(shell, arguments):
    result = shell.ask(arguments)
    assert result["outcome"] == "error"
    assert result["output"].startswith("error: ")


def test_half_characters_in_a_command_do_no_harm(shell):
    assert shell.out("echo '\ud800é'") == "?é\n"


def test_a_directory_whose_name_is_no_text_is_entered_and_kept(shell):
    shell.out('d=$(printf \'a\\nb\\xff\'); mkdir "$d"; cd "$d"; touch file')
    assert shell.run("exit 1")["facts"]["cwd"].endswith("a\nb?")
    assert shell.out("ls") == "file\n"


def test_an_image_without_bash_is_an_error_in_words(driver, tmp_path):
    result = driver.begin(tmp_path, PATH="/nonexistent").run("true")
    assert (result["outcome"], result["output"]) == ("error", "error: there is no bash in this image")


def test_a_bash_that_cannot_run_is_an_error_in_words(driver, tmp_path):
    fake = tmp_path / "bash"
    fake.write_text("no program")
    fake.chmod(0o755)
    result = driver.begin(tmp_path, PATH=str(tmp_path)).run("true")
    assert result["output"] == "error: bash does not come up: it exited with code 127"


def test_a_shell_that_dies_between_two_commands_is_replaced_and_said_to_be(shell):
    pid = int(shell.out("x=1; (until [ -e go ]; do sleep 0.05; done; kill -9 $$) & echo $$"))
    shell.out("y=1")
    (shell.home / "go").touch()
    until = time.monotonic() + 30
    while psutil.pid_exists(pid):
        assert time.monotonic() < until
        time.sleep(0.02)
    result = shell.run("echo $x")
    assert result["output"].startswith("1\n[the shell was killed by SIGKILL"), result
    assert result["facts"] == {"exit_code": 0, "cwd": str(shell.home), "restarted": True, "omitted": 0}


def test_nothing_of_the_tool_is_open_in_a_command(shell):
    assert shell.out("ls /proc/self/fd | tr '\\n' ' '; echo; trap -p | wc -l").startswith("0 1 2 3 \n")


def test_a_broken_pipe_ends_a_program_as_elsewhere(shell):
    assert shell.out("yes | head -1; echo ${PIPESTATUS[0]}") == "y\n141\n"


def test_programs_are_told_that_nobody_watches(shell):
    assert (
        shell.out("echo $TERM $PAGER $GIT_PAGER $GIT_TERMINAL_PROMPT; test -t 1 || echo no terminal")
        == "dumb cat cat 0\nno terminal\n"
    )
