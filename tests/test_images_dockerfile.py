"""A Dockerfile becomes a definition that does what Docker would have done, or is refused by line and name."""

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from prorl_cli.errors import UserError
from prorl_cli.images.dockerfile import import_dockerfile
from tests.conftest import need


def imported(folder, text):
    (folder / "Dockerfile").write_text(textwrap.dedent(text))
    return import_dockerfile(folder / "Dockerfile", context=folder, out=folder / "image.def")


def problems(folder, text):
    with pytest.raises(UserError) as refusal:
        imported(folder, text)
    lines = str(refusal.value).splitlines()
    assert lines[0] == f"{folder / 'Dockerfile'} cannot be translated into a definition:"
    assert lines[-1] == "Nothing was written."
    return [line.strip() for line in lines[1:-1]]


@pytest.fixture
def context(tmp_path):
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "b").write_text("b")
    (tmp_path / "source" / ".hidden").write_text("h")
    (tmp_path / "one").write_text("1")
    (tmp_path / "two").write_text("2")
    (tmp_path / "link").symlink_to("one")
    return tmp_path


ORDER_MATTERS = """\
    FROM debian:bookworm-slim
    ARG GREETING="hello world"
    ENV PATH=/out/bin:$PATH NAME=first
    ENV NAME=second OLD=$NAME
    RUN mkdir -p /out/bin /out/there && echo "#!/bin/sh\\necho found" > /out/bin/mine && chmod +x /out/bin/mine
    RUN cd /out && HIDDEN=1 && echo "$GREETING" > greeting \\
        # a comment inside

        && echo "$NAME $OLD" > names
    RUN echo "[$HIDDEN] $(pwd) $(mine)" > /out/fresh
    WORKDIR /out/work
    WORKDIR deeper
    COPY one .
    COPY one two ./more/
    COPY one /out/there
    COPY one /out/renamed
    RUN rm one more/two && false; true
    COPY source copied
    RUN ["/bin/sh", "-c", "pwd > '/out/a b'"]
"""


def test_its_script_does_in_order_what_docker_does(context):
    need("bwrap", shutil.which("bwrap"))
    text = imported(context, ORDER_MATTERS).text
    out = context / "out"
    out.mkdir()
    played(context, text, out)
    found = {str(p.relative_to(out)): p.read_text() for p in sorted(out.rglob("*")) if p.is_file()}
    assert found == {
        "a b": "/out/work/deeper\n",
        "bin/mine": "#!/bin/sh\necho found\n",
        "fresh": "[] / found\n",
        "greeting": "hello world\n",
        "names": "second first\n",
        "renamed": "1",
        "there/one": "1",
        "work/deeper/more/one": "1",
        "work/deeper/copied/.hidden": "h",
        "work/deeper/copied/deep/b": "b",
    }


def played(context, text, out):
    """Run %post as the builder would: %files in their places, a shell as root of its own root."""
    staged = context / "staged"
    for line in section(text, "files"):
        source, place = line.split()
        place = staged / place.removeprefix("/.prorl-copy/")
        place.parent.mkdir(parents=True, exist_ok=True)
        found = context / source
        shutil.copytree(found, place) if found.is_dir() else shutil.copy(found, place)
    script = context / "post.sh"
    script.write_text("\n".join(section(text, "post")))
    links = [word for name in ("bin", "lib", "lib64") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    binds = ["--ro-bind", "/usr", "/usr", "--bind", out, "/out", "--bind", staged, "/.prorl-copy"]
    command = ["bwrap", "--unshare-all", *links, *binds, "--ro-bind", script, "/post.sh", "--dev", "/dev"]
    ended = subprocess.run(
        [*command, "/bin/sh", "-e", "/post.sh"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert ended.stderr.strip() in ("", "rm: cannot remove '/.prorl-copy': Device or resource busy")


def section(text, name):
    lines = text.split(f"\n%{name}\n", 1)[1].splitlines()
    end = next((i for i, line in enumerate(lines) if line.startswith(("%", "Bootstrap"))), len(lines))
    return [line for line in lines[:end] if line.strip()]


def test_stages_keep_their_order_their_names_and_what_is_copied_between_them(context):
    text = imported(
        context,
        """\
        ARG BASE=debian:12
        FROM gcc:14 AS Build
        COPY one /made
        FROM ${BASE}
        COPY --from=build /made /taken
        COPY --from=0 /etc/os-release /etc/of-gcc
        ENTRYPOINT ["prog", "a b"]
        CMD ["it's", "$HOME"]
        LABEL org.title="two words" version=3
        MAINTAINER someone@example.org
        """,
    ).text
    headers = [line for line in text.splitlines() if line.startswith(("Bootstrap", "From", "Stage", "%files from"))]
    assert headers == [
        *("Bootstrap: docker", "From: gcc:14", "Stage: build"),
        *("Bootstrap: docker", "From: debian:12", "Stage: stage-1", "%files from build"),
    ]
    last = text.split("Stage: stage-1")[1]
    assert [line.strip() for line in section(last, "labels")] == [
        "org.title two words",
        "version 3",
        "maintainer someone@example.org",
    ]
    assert [line.strip() for line in section(last, "runscript")] == [
        """if [ $# = 0 ]; then set -- 'it'"'"'s' '$HOME'; fi""",
        """exec prog 'a b' "$@\"""",
    ]


def test_values_that_last_are_exported_once_with_the_bases_own_path(context):
    text = imported(
        context,
        "FROM a\nENV PATH=/x:$PATH\nENV PATH=/y:${PATH} Q='$5 `x`' A=\n",
    ).text
    assert [line.strip() for line in section(text, "environment")] == [
        'export PATH="/y:/x:${PATH}"',
        'export Q="\\$5 \\`x\\`"',
        'export A=""',
    ]


def test_one_base_can_be_replaced_when_the_image_is_built(context):
    text = imported(context, "FROM debian:12\nRUN true\n").text
    assert "Bootstrap: {{ bootstrap }}\nFrom: {{ from }}\n" in text
    assert [line.strip() for line in section(text, "arguments")] == ["bootstrap=docker", "from=debian:12"]


def test_what_means_nothing_in_a_box_is_said_and_left_out(context):
    made = imported(context, "FROM a\nEXPOSE 80\nVOLUME /data\nHEALTHCHECK CMD curl x\nSTOPSIGNAL 9\nCMD run\n")
    assert [str(each).split(" left out")[0] for each in made.left_out] == [
        *("line 1: CMD", "line 2: EXPOSE", "line 3: VOLUME", "line 4: HEALTHCHECK", "line 5: STOPSIGNAL"),
    ]
    assert "curl" not in made.text


REFUSED = {
    "RUN --mount=type=cache,target=/x pip install y": "line 2: RUN: --mount=type=cache,target=/x needs BuildKit",
    "RUN cat <<EOF > /x": "line 2: RUN <<: here-documents",
    "COPY <<EOF /x": "line 2: COPY <<: here-documents",
    'RUN docker ps -f "{{ name }}"': "line 2: RUN: {{ NAME }} would be taken",
    'SHELL ["/bin/bash", "-c"]': "line 2: SHELL: it has no translation",
    "USER app": "line 2: USER: app: all of a definition is built as root",
    "ONBUILD RUN x": "line 2: ONBUILD: it has no translation",
    "COPY --chown=me:me one /one": "line 2: COPY: --chown=me:me has no translation",
    "COPY --chmod=755 one /one": "line 2: COPY: --chmod=755 has no translation",
    "COPY --link one /one": "line 2: COPY: --link has no translation",
    "COPY --from=debian:12 /a /b": "line 2: COPY: --from=debian:12 is no earlier stage",
    "COPY --from=0 /a /b": "line 2: COPY: --from=0 is no earlier stage",
    "COPY one two /three": "line 2: COPY: several sources need a folder",
    "COPY one": "line 2: COPY: a source and a destination",
    "COPY o* /x/": "line 2: COPY: 'o*': wildcards",
    'COPY ["one", "/x"]': "line 2: COPY: the form with brackets",
    "COPY missing /x": "line 2: COPY: there is no missing in the build context",
    "COPY ../one /x": "line 2: COPY: ../one lies outside the build context",
    "COPY link /x": "line 2: COPY: link is a link",
    "COPY . /x": "line 2: COPY: link is a link",
    "COPY one x": "line 2: COPY: x is relative to the base image's WORKDIR",
    "COPY one $HERE/x": "line 2: COPY: $HERE has no value in this file",
    "WORKDIR app": "line 2: WORKDIR: app is relative to the base image's",
    "ADD https://example.org/x /x": "line 2: ADD: https://example.org/x: fetch it",
    "ADD code.tar.gz /x": "line 2: ADD: code.tar.gz would be unpacked",
    "ENV A": "line 2: ENV: A has no value",
    "ENV A=1 B": "line 2: ENV: 'B' is not NAME=VALUE",
    "ENV LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH": "line 2: ENV: $LD_LIBRARY_PATH has no value",
    'ENV J={\\"a\\":1}': "line 2: ENV: J: quotes and backslashes",
    'ENV A="b': 'line 2: ENV: a quote " is not closed',
    "ENV A=${B%c}": "line 2: ENV: '${B%c}' is no variable that is understood",
    "ARG VERSION": "line 2: ARG: VERSION has no default",
    "FROM --platform=arm64 b": "line 2: FROM: '--platform=arm64 b'",
    "FROM scratch": "line 2: FROM: scratch",
    "FROM $NONE": "line 2: FROM: $NONE has no value",
    "NONSENSE 1": "line 2: NONSENSE: it has no translation",
    "=x": "line 2: '=x' is no instruction",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_has_no_translation_is_refused_by_line_and_name(context, line):
    found = problems(context, f"FROM a\n{line}\n")
    assert len(found) == 1 and found[0].startswith(REFUSED[line]), found


def test_all_mistakes_are_told_at_once_with_the_line_they_begin_on(context):
    text = "# hello\nFROM a\n\nRUN a \\\n  # not b\n  && c\nUSER x\nSHELL y\nCOPY \\\n --chown=q one /y\n"
    assert [each.split(":")[0] for each in problems(context, text)] == ["line 7", "line 8", "line 9"]


def test_a_stage_cannot_be_built_upon(context):
    found = problems(context, "FROM a AS base\nFROM base\nFROM b AS base\n")
    assert [each.split(": ")[2] for each in found] == [
        "base is an earlier stage",
        "'base' names an earlier stage already, or is no name",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: there is no FROM"),
        ("RUN x\nFROM a\n", "line 1: RUN: it comes before the first FROM"),
        ("# escape=`\nFROM a\n", "line 1: # escape=`"),
        ("# syntax=mine/frontend\nFROM a\n", "line 1: # syntax=mine/frontend"),
    ],
)
def test_another_language_is_refused(context, text, words):
    assert problems(context, text)[0].startswith(words)


def test_a_folder_that_dockerignore_thins_out_is_refused(context):
    (context / ".dockerignore").write_text("source/.hidden\n")
    assert problems(context, "FROM a\nCOPY source /x\nCOPY one /y\n") == [
        "line 2: COPY: source is a folder, and .dockerignore says what of it stays out: copy what you need by name"
    ]


def test_what_spythons_parser_reads_otherwise_is_refused(context):
    found = problems(context, "FROM pandas AS build\nRUN true\n")
    assert found == ["line 1: FROM: spython's parser sees the stages ['AS build']"]


WATCHED = """
import sys
from pathlib import Path
def heard(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "socket.connect"):
        print(event, arguments, file=sys.stderr)
        os._exit(9)
import os
sys.addaudithook(heard)
from prorl_cli.images.dockerfile import import_dockerfile
here = Path(sys.argv[1])
import_dockerfile(here / "Dockerfile", context=here, out=here / "image.def")
print("done")
"""


def test_nothing_is_launched_and_nothing_is_asked_for(context):
    imported(context, ORDER_MATTERS)
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, context],
        capture_output=True,
        text=True,
        cwd="/",
        env={**os.environ, "HOME": "/nonexistent"},
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")
