"""Every shipped definition is built for real, by an unprivileged user without a network, and serves its domain's tools."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from prorl_cli import images
from tests.conftest import need
from tests.images import FOLDER, apptainer_works, image
from tests.sandbox_kit import opened, settle
from tests.sif_images import NAMES, build, oci_archive, prorl_cache
from tests.test_sif_parts import SECRET, commit, git


@pytest.fixture(autouse=True)
def apptainer():
    need("apptainer", apptainer_works())


def answers(sif, scratch, *calls):
    """What the tools say, one after the other, in one box of the image, copied to the node as a worker does."""

    async def scene(near):
        serve = ("bash", "python")
        async with opened("apptainer", scratch, serve=serve, image=str(near), memory="1GiB", processes=256) as factory:
            box = await factory.start()
            results = [
                await box.call(tool, {"code" if tool == "python" else "command": text}, 120) for tool, text in calls
            ]
            await box.close()
            return results

    with images.near(Path(sif), FOLDER / "node") as copy:
        results = asyncio.run(scene(copy))
    assert settle() == []
    assert {result.outcome for result in results} == {"ok"}, results
    return [result.output.strip() for result in results]


def test_math_integrates_solves_and_multiplies(tmp_path):
    row = build("math")
    (symbols, numbers) = answers(
        row["path"],
        tmp_path,
        ("python", "import sympy as s; x = s.symbols('x'); print(s.integrate(s.exp(-x**2), (x, -s.oo, s.oo)))"),
        (
            "python",
            "import numpy, scipy.optimize as o; print(round(o.brentq(lambda v: v**2 - numpy.float64(2), 0, 2), 6))",
        ),
    )
    assert (symbols, numbers) == ("sqrt(pi)", "1.414214")


def test_code_compiles_and_runs(tmp_path):
    row = build("code")
    source = '#include <vector>\n#include <cstdio>\nint main() { std::vector<int> v(6, 7); int n = 0; for (int i : v) n += i; std::printf("%d\\n", n); }\n'
    project = "cmake_minimum_required(VERSION 3.10)\nproject(p CXX)\nadd_executable(p a.cpp)\n"
    (said,) = answers(
        row["path"],
        tmp_path,
        ("bash", f"mkdir /tmp/p; cd /tmp/p; cat > a.cpp <<'END'\n{source}END\ncat > CMakeLists.txt <<'END'\n{project}END\n"
                 "cmake . > log && make >> log && ./p && printf 'x:\\n\\t@echo made\\n' > Makefile && make x"),
    )  # fmt: skip
    assert said.splitlines() == ["42", "made"]


def test_stem_draws_tabulates_and_finds_a_passage(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "physics.md").write_text("Intro.\n\nWater boils at 373 K at sea level.\n")
    row = build("stem", "--build-arg", f"corpus={corpus}")
    found, drawn = answers(
        row["path"],
        tmp_path / "scratch",
        ("bash", "search -n 1 water boils"),
        ("python", "import pandas as p, matplotlib.pyplot as m, os\nm.plot(p.Series([1, 4, 9]).diff()); m.savefig('/tmp/a.png')\n"
                   "print(os.path.getsize('/tmp/a.png') > 1000, m.get_backend().lower())"),
    )  # fmt: skip
    assert found == "physics.md:3\nWater boils at 373 K at sea level."
    assert drawn == "True agg"


def test_swe_has_the_repository_of_its_task_and_no_later_history(tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init")
    (origin / "test_it.py").write_text(
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(open('file').read(), 'fixed')\n"
    )
    git(origin, "add", ".")
    base = commit(origin, 1, "broken")
    commit(origin, 2, SECRET)
    bundle = tmp_path / "task.bundle"
    git(origin, "bundle", "create", str(bundle), "--all")
    row = build("swe", "--build-arg", f"bundle={bundle}", "--build-arg", f"commit={base}")
    head, history, tested, fixed = answers(
        row["path"],
        tmp_path / "scratch",
        ("bash", "cd /testbed && git rev-parse HEAD && git status --porcelain && python3 --version"),
        (
            "bash",
            "git cat-file --batch-all-objects --batch-check | grep -c commit; git remote; git tag; git reflog | wc -l",
        ),
        ("bash", "python3 -m unittest 2>&1 | tail -1"),
        ("bash", "printf fixed > file && python3 -m unittest 2>&1 | tail -1 && git diff --stat | tail -1"),
    )
    assert head.splitlines() == [base, "Python 3.11.2"]
    assert history.split() == ["1", "0"]
    assert tested == "FAILED (failures=1)"
    assert [line.strip() for line in fixed.splitlines()] == ["OK", "1 file changed, 1 insertion(+), 1 deletion(-)"]


def test_what_was_built_is_found_listed_and_proven():
    for name in NAMES[:2]:
        assert build(name)["state"] == "there"
    facts = json.loads(prorl_cache("info", "math", "--json").stdout)
    assert {"numpy==2.2.6", "sympy==1.14.0"} <= set(facts["packages"]["pip"])
    assert facts["python"] == "3.11.2" and facts["runtime"].startswith("apptainer 1.")
    said = prorl_cache("verify", "math", "code")
    assert said.stdout.count(": ok") == 2 and said.returncode == 0


def test_an_imported_dockerfile_builds_as_docker_would_have_built_it(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("a")
    (tmp_path / "note").write_text("n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    assert prorl_cache("import-dockerfile", "Dockerfile", "-o", "mine.def", cwd=tmp_path).returncode == 0
    base = oci_archive(image("folder"), tmp_path / "base.tar", {"PATH": "/base/bin:/usr/bin:/bin", "OF_BASE": "a b"})
    row = build("mine", definition=tmp_path / "mine.def", base=base)
    looked = "cd /app && find . -type f | sort; cat /taken/it /greeting /path; greet"
    said = ["apptainer", "exec", "--containall", row["path"], "sh", "-c", looked]
    seen = subprocess.run(said, capture_output=True, text=True, check=True).stdout.splitlines()
    assert seen == [
        "./deep/a", "./note", "built", "hello there a b", "/opt/mine:/base/bin:/usr/bin:/bin", "hello there a b",
    ]  # fmt: skip


DOCKERFILE = r"""
FROM debian:bookworm-slim AS made
RUN mkdir /out && echo built > /out/it
FROM debian:bookworm-slim
ENV PATH=/opt/mine:$PATH GREETING="hello there"
WORKDIR /app/deep
COPY source note ./
COPY --from=made /out /taken
RUN cd / && rm -rf /app/deep/note
COPY note ../note
RUN mkdir /opt/mine && printf '#!/bin/sh\necho "$GREETING $OF_BASE"\n' > /opt/mine/greet \
    # as a tool would be
    && chmod 755 /opt/mine/greet
RUN greet > /greeting; echo $PATH > /path
"""
