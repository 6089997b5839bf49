"""Definition files: what is refused, with its line, and what the builder is given."""

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest

from prorl_cli.errors import UserError
from prorl_cli.images import read_definition
from prorl_cli.images.definition import rendered
from prorl_cli.images.registry import resolve
from tests.images_kit import make_definition

PIN = "sha256:" + "0" * 64
HEAD = "Bootstrap: localimage\nFrom: base\n"


def text_of(definition):
    return rendered(definition, lambda source: Path("/brought") / source.name)


def refusal(folder, text, **arguments):
    with pytest.raises(UserError) as caught:
        make_definition(folder, text=text, **arguments)
    return str(caught.value).replace(f"{folder}/", "")


def test_arguments_and_files_are_filled_in_and_scripts_stay_as_they_are(tmp_path):
    text = (
        HEAD
        + "%arguments\n  word = world\n%files\n  input.txt /opt/\n%post -c /bin/bash\n  echo {{ word }} '{{.Go}}' $X # %\n"
    )
    assert text_of(make_definition(tmp_path, text=text)) == (
        f"Bootstrap: localimage\nFrom: {tmp_path}/base\n%files\n"
        '    "/brought/input.txt" "/opt/"\n'
        "%post -c /bin/bash\n  echo world '{{.Go}}' $X # %\n\n"
    )
    assert "echo moon" in text_of(make_definition(tmp_path, text=text, word="moon"))


def test_windows_line_ends_and_comments_do_no_harm(tmp_path):
    text = "# what it is for\n\n" + HEAD + "%post\n    true\n"
    assert text_of(make_definition(tmp_path, text=text.replace("\n", "\r\n"))) == text_of(
        make_definition(tmp_path, text=text)
    )


def test_stages_copy_from_earlier_stages_and_each_has_its_own_defaults(tmp_path):
    text = (
        "Bootstrap: localimage\nFrom: base\nStage: tools\n%arguments\n  x=1\n%post\n  make {{ x }}\n"
        f"bootstrap: docker\nFrom: name@{PIN}\n%arguments\n  x=2\n%files from tools\n  /opt/a /opt/b\n%post\n  run {{{{ x }}}}\n"
    )
    found = text_of(make_definition(tmp_path, text=text))
    assert "stage: tools" in found
    assert '%files from tools\n    "/opt/a" "/opt/b"' in found
    assert f"From: name@{PIN}" in found
    assert ("make 1" in found, "run 2" in found) == (True, True)


def test_a_pattern_brings_what_it_matches_and_a_line_without_destination_keeps_its_path(tmp_path):
    for name in ("1.whl", "2.whl", ".hidden.whl", "3.txt"):
        (tmp_path / name).touch()
    found = text_of(make_definition(tmp_path, text=HEAD + "%files\n  *.whl /wheels/\n  input.txt\n"))
    assert found.count("/wheels/") == 2
    assert '"/brought/input.txt" "/input.txt"' in found


REFUSED = {
    "setup": (HEAD + "%setup\n  cp a b\n", "fake.def:3: %setup runs on the host"),
    "pre": (HEAD + "%pre\n  x\n", "fake.def:3: %pre runs on the host"),
    "unknown section": (HEAD + "%posts\n", "fake.def:3: %posts is no section that prorl builds"),
    "app": (HEAD + "%appinstall x\n", "fake.def:3: %appinstall is no section"),
    "indented %": (HEAD + "%post\n  %d\n", "fake.def:4: a line that begins with % begins a section"),
    "% in a script": (HEAD + "%post\n  %-5s x\n", "fake.def:4: a line that begins with % begins a section"),
    "mirror": ("Bootstrap: debootstrap\nFrom: x\n", "fake.def:1: `Bootstrap: debootstrap` asks a mirror"),
    "no digest": (
        "Bootstrap: library\nFrom: x\n",
        "fake.def:1: `Bootstrap: library` nobody can say later what it held",
    ),
    "daemon": ("Bootstrap: buildkit\nFrom: x\n", "fake.def:1: `Bootstrap: buildkit` needs a daemon"),
    "scratch": ("Bootstrap: scratch\nFrom: x\n", "fake.def:1: `Bootstrap: scratch` is filled by %setup"),
    "no from": ("Bootstrap: localimage\n", "fake.def:1: it lacks `From:`"),
    "nothing": ("# nothing\n", "fake.def:1: it has no `Bootstrap:` line"),
    "before": ("%post\n  x\n" + HEAD, "fake.def:1: only comments may stand before"),
    "header": ("Bootstrap: localimage\nFrom: base\nMirrorURL: x\n", "fake.def:3: 'MirrorURL' is no header"),
    "twice": (HEAD + "From: other\n", "fake.def:3: `from:` stands at line 2 already"),
    "continued": ("Bootstrap: localimage\nFrom: ba\\\nse\n", "fake.def:2: a header goes on one line"),
    "no value": (HEAD + "%post\n  {{ x }}\n", "fake.def:4: {{ x }} has no value"),
    "no such base": ("Bootstrap: localimage\nFrom: other\n", "fake.def:2: From: other: "),
    "reference": (
        "Bootstrap: docker\nFrom: debian@sha256:12\n",
        "fake.def:2: From: debian@sha256:12: it is no reference",
    ),
    "no such file": (HEAD + "%files\n  nothere /x\n", "fake.def:4: there is no nothere"),
    "shell": (HEAD + "%files\n  $(id) /x\n", "fake.def:4: %files holds lines like `SOURCE DESTINATION`, without $"),
    "three words": (HEAD + "%files\n  a b c\n", "fake.def:4: %files holds lines"),
    "pattern": (HEAD + "%files\n  *.txt\n", "fake.def:4: a pattern needs a destination"),
    "stage": (HEAD + "%files from later\n  a b\n", "fake.def:3: %files from later: it says `from` and an earlier"),
    "default": (HEAD + "%arguments\n  x\n", "fake.def:4: %arguments holds lines like"),
    "nul": (HEAD + "%post\n  \0\n", "fake.def:4: it holds a NUL"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_with_file_and_line(tmp_path, text, words):
    (tmp_path / "a").touch()
    assert refusal(tmp_path, text).startswith(words)


def test_all_mistakes_are_said_at_once_in_order(tmp_path):
    found = refusal(tmp_path, HEAD + "%setup\n%files\n  nothere /x\n%post\n  {{ y }}\n", z="1").splitlines()
    assert [line.split(":")[1] for line in found] == ["1", "3", "5", "7"]


def test_an_argument_that_nothing_uses_or_that_would_be_filled_in_twice_is_refused(tmp_path):
    assert "no {{ z }} in it, but an argument 'z' was given" in refusal(tmp_path, HEAD, z="1")
    assert "holds a line break or {{" in refusal(tmp_path, HEAD + "%post\n  {{ z }}\n", z="{{ z }}")


def test_files_that_cannot_be_named_or_that_lead_into_themselves_are_refused(tmp_path):
    (tmp_path / "odd name").touch()
    assert "cannot be written in a definition" in refusal(tmp_path, HEAD + '%files\n  "odd name" /x\n')
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "back").symlink_to("..")
    assert "leads back into itself" in refusal(tmp_path, HEAD + "%files\n  loop /x\n")


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the definition .*nothere\.def: No such file"):
        read_definition(tmp_path / "nothere.def")
    (tmp_path / "binary.def").write_bytes(b"Bootstrap: localimage\n\xff")
    with pytest.raises(UserError, match=r"binary\.def:2: it is not UTF-8 text"):
        read_definition(tmp_path / "binary.def")


def test_a_tag_is_pinned_to_what_its_registry_says_now(tmp_path):
    text = "Bootstrap: docker\nFrom: docker://host.example/lib/debian:12 # stable\n"
    (tmp_path / "fake.def").write_text(text)
    definition = read_definition(
        tmp_path / "fake.def", resolve=lambda reference: {"host.example/lib/debian:12": PIN}[reference]
    )
    assert f"From: host.example/lib/debian@{PIN}\n" in text_of(definition)
    assert definition.bases[0].digest == PIN


def test_a_tag_without_a_host_is_taken_as_it_is_with_a_warning(tmp_path):
    definition = make_definition(tmp_path, text="Bootstrap: docker\nFrom: lib/debian:12\n")
    assert "From: lib/debian:12\n" in text_of(definition)
    assert definition.warnings == ("base lib/debian:12 can move: pin lib/debian@sha256:… for an exact key",)
    assert make_definition(tmp_path, text=f"Bootstrap: docker\nFrom: lib/debian:12@{PIN}\n").warnings == ()


class Registry(http.server.BaseHTTPRequestHandler):
    """One image behind one token."""

    manifest = json.dumps({"schemaVersion": 2}).encode()

    def do_GET(self):
        if self.path.startswith("/token?"):
            assert "scope=repository%3Alib%2Fx%3Apull" in self.path
            self.answer(200, json.dumps({"token": "t"}).encode())
        elif self.headers.get("Authorization") != "Bearer t":
            realm = f"http://127.0.0.1:{self.server.server_port}/token"
            self.answer(
                401, b"", **{"WWW-Authenticate": f'Bearer realm="{realm}",service="s",scope="repository:lib/x:pull"'}
            )
        elif self.path == "/v2/lib/x/manifests/1":
            self.answer(200, self.manifest)
        else:
            self.answer(404, b"")

    def answer(self, code, body, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def registry():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_registry_is_asked_with_the_token_that_it_wants(registry):
    assert resolve(f"{registry}/lib/x:1") == f"sha256:{hashlib.sha256(Registry.manifest).hexdigest()}"
    with pytest.raises(UserError, match="its registry does not say which image that is"):
        resolve(f"{registry}/lib/x:2")
