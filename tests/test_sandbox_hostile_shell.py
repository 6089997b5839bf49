"""What bricked, hung or misled other people's stateful tools, in real boxes of every runtime; `sandbox_bugs` says which
bug is which.
"""

import asyncio
import time

from tests.hostile_kit import box_of, on, out, run, scratch
from tests.sandbox_bugs import EVERY
from tests.sandbox_kit import settle

__all__ = ["scratch"]


PARSED_WRONGLY_ELSEWHERE = [
    ("cat <<A; cat <<'B'\n$((1 + 1))\nA\n$x\nB", "2\n$x\n"),
    ("echo $(cat <<E\ninner\nE\n)", "inner\n"),
    ("case x in (x) echo paren;; esac; echo $(case y in y) echo sub;; esac)", "paren\nsub\n"),
    ("[[ ab =~ ^(a|b)+$ ]] && echo ${BASH_REMATCH[0]}", "ab\n"),
    ("for ((i=0; i<2; i++)) { echo $i; }", "0\n1\n"),
    ("while read -r a b; do echo $b; done < <(printf '1 2\\n3 4\\n')", "2\n4\n"),
    ("echo one\n\n# a comment\necho two &&\n  echo three", "one\ntwo\nthree\n"),
    ("cat <<-'EOF' | tr a-z A-Z\n\tindented\n\tEOF", "INDENTED\n"),
    ("f() { cat <<X\n$1\nX\n}; f 'a b'", "a b\n"),
]


@on(*EVERY)
def test_whatever_bash_understands_runs_as_it_is(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            for command, output in PARSED_WRONGLY_ELSEWHERE:
                assert await out(box, command) == output

    asyncio.run(scene())


BRICKED_ELSEWHERE = (
    "set -euo pipefail; false; echo never",
    "PS1='$ '; PROMPT_COMMAND='echo prompt'; PS2=; IFS=x",
    "exec bash -c 'exit 3'",
    "kill -9 $$",
    "printf '\\033[6n\\033]11;?\\007'; stty raw -echo",
    "set -H; echo hi!!; set -o vi",
    "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x); ls",
    "cat; read x; head -1",
    "exec >/dev/null 2>&1 0<&-",
    "trap 'echo trapped' EXIT DEBUG; exit 9",
    "sleep 100 &",
    "true",
)


@on(*EVERY)
def test_a_shell_goes_on_after_what_bricked_others(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            for command in BRICKED_ELSEWHERE:
                began = time.monotonic()
                result = await run(box, command, 20)
                assert result.outcome == "ok" and time.monotonic() - began < 10, (command, result)
                after = await run(box, "trap - EXIT DEBUG; unset BIG; echo on")
                assert "on" in after.output.splitlines(), (command, after)

    asyncio.run(scene())


@on(*EVERY)
def test_a_timeout_returns_what_was_printed_and_ends_every_descendant(runtime, scratch):
    own = f"{time.monotonic_ns()}.25"
    stubborn = f"echo before; trap '' TERM INT; sleep {own} & setsid sleep {own} & (sleep {own} &); sleep {own}"
    count = f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep {own}'; true"

    async def scene():
        async with box_of(runtime, scratch) as box:
            await out(box, "cd /usr; x=1")
            late = await run(box, stubborn, 0.5)
            assert late.outcome == "timeout" and late.output.startswith("before\n")
            assert await out(box, f"{count}; echo $x; pwd") == "0\n1\n/usr\n"

    asyncio.run(scene())


@on(*EVERY)
def test_a_child_that_keeps_the_output_open_does_not_hold_the_answer_back(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            began = time.monotonic()
            assert await out(box, "setsid sleep 100 & nohup sleep 100 & echo started") == "started\n"
            assert time.monotonic() - began < 5

    asyncio.run(scene())


@on(*EVERY)
def test_a_here_document_of_megabytes_is_one_command(runtime, scratch):
    body = "a line with ' \" ` $ \\ and !! in it\n" * 60_000

    async def scene():
        async with box_of(runtime, scratch) as box:
            assert await out(box, f"cat <<'END' | wc -c\n{body}END") == f"{len(body)}\n"

    asyncio.run(scene())


@on(*EVERY)
def test_bytes_that_are_no_text_come_back_as_they_can(runtime, scratch):
    async def scene():
        async with box_of(runtime, scratch) as box:
            assert await out(box, r"printf 'a\0b\377c\r\nd\303\251\n'") == "a\0b\ufffdc\r\ndé\n"

    asyncio.run(scene())


@on(*EVERY)
def test_any_path_will_do(runtime, tmp_path):
    odd = "a b, c:d 'e' \"f\" $(g)\nh"

    async def scene():
        async with box_of(runtime, tmp_path / odd) as box:
            await out(box, f"mkdir -p '{odd.replace(chr(39), '')}'; cd a*; touch file")
            assert await out(box, "ls; cd ..; ls -d a* | wc -l") == "file\n2\n"

    asyncio.run(scene())
    assert settle() == []
    assert list((tmp_path / odd).glob("boxes-*")) == []


@on(*EVERY)
def test_a_python_that_is_late_leaves_or_dies_answers_the_next_cell_and_no_other(runtime, scratch):
    async def cell(box, code, timeout_s=20.0):
        return await box.call("python", {"code": code}, timeout_s)

    async def scene():
        async with box_of(runtime, scratch, serve=("python",)) as box:
            assert "41" in (await cell(box, "x = 41\nprint(x)")).output
            late = await cell(box, "import time\nprint('before', flush=True)\ntime.sleep(60)", 1)
            assert late.outcome == "timeout" and "before" in late.output
            assert (await cell(box, "print(x + 1)")).output.strip() == "42", "its state outlives an interrupt"
            for number, end in enumerate(
                (
                    "while True:\n  try: time.sleep(60)\n  except BaseException: pass",
                    "import os\nos._exit(3)",
                    "raise SystemExit(4)",
                )
            ):
                await cell(box, end, 1)
                assert (await cell(box, f"print({number} * 7)")).output.strip().endswith(str(number * 7))

    asyncio.run(scene())
