"""`prorl cache build --slurm`: real jobs that build real images; one builds for all, whoever is killed meanwhile."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from prorl_cli.images import Store, facts_here, key, read_definition
from prorl_cli.images.lease import Lease
from tests.conftest import need
from tests.images import apptainer_works, image
from tests.quick_run import environment, until

RECIPE = """\
name: images
model: builtin:tiny
agent: {renderer: tiny}
tasks: [{domain: a, source: a.jsonl}]
sandbox: {runtime: apptainer, image: first}
cluster: {executor: slurm, time: 20m, rollout: {partition: cpu, cpus: 2}}
"""

DEFINITION = """\
Bootstrap: localimage
From: {base}

%post
    sleep {seconds}
    echo {name} > /made
"""


@pytest.fixture
def place(cluster, tmp_path):
    need("apptainer", apptainer_works())
    (tmp_path / "images.yaml").write_text(RECIPE)
    for name in ("first", "second"):
        define(tmp_path, name, seconds=0)
    return tmp_path


def define(place, name, seconds):
    (place / f"{name}.def").write_text(DEFINITION.format(base=image("folder"), name=name, seconds=seconds))


def start(place, *words):
    command = [sys.executable, "-m", "prorl_cli", "cache", "build", *words, "--slurm", "--json"]
    own = {**environment(place), "PRORL_CACHE": str(place / "cache")}
    return subprocess.Popen(command, cwd=place, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process, code=0):
    said, trouble = process.communicate(timeout=300)
    assert process.returncode == code, said + trouble
    return json.loads(said)


def test_each_image_is_a_job_and_what_is_there_needs_none(cluster, place):
    rows = ended(start(place, "images.yaml", "second"))
    assert [(row["name"], row["state"]) for row in rows] == [("first", "built"), ("second", "built")]
    for row in rows:
        made = subprocess.run(
            ["apptainer", "exec", "--containall", row["path"], "cat", "/made"], capture_output=True, text=True
        )
        assert made.stdout.strip() == row["name"]
    assert os.listdir(place / "cache" / "jobs") == []
    cluster.clear()
    again = ended(start(place, "images.yaml", "second"))
    assert [row["state"] for row in again] == ["there", "there"] and not cluster.jobs()


def test_of_several_jobs_one_builds_and_when_it_is_killed_another_takes_over(cluster, place):
    define(place, "first", seconds=20)
    builders = [start(place, "images.yaml") for _ in range(3)]
    definition = read_definition(place / "first.def")
    lease = Lease(place / "cache" / "leases" / key(definition, "lock", facts_here()))
    until(lambda: lease.newest() == 1 and lease.of(1), 120, "the first claim")
    winner = lease.of(1)
    time.sleep(5)  # well inside its build
    assert lease.newest() == 1
    psutil.Process(winner.pid).kill()
    results = [process.communicate(timeout=300)[0] for process in builders]
    rows = [json.loads(said)[0] for said in results]
    assert sorted(row["state"] for row in rows) == ["built", "built", "failed"], rows
    assert len({row["path"] for row in rows if "path" in row}) == 1 and lease.newest() == 2
    assert Store(place / "cache").verify(Store(place / "cache").find("first")) == ""


def test_a_build_that_fails_in_its_job_says_why_and_leaves_no_folder_nor_do_jobs_of_long_ago(place):
    jobs = place / "cache" / "jobs"
    for name in ("lost", "of-today"):
        (jobs / name).mkdir(parents=True)
    os.utime(jobs / "lost", (0, 0))
    (place / "bad.def").write_text(DEFINITION.format(base=image("folder"), name="x; exit 3", seconds=0))
    row, other = ended(start(place, "bad", "images.yaml"), code=1)
    assert other["state"] == "built"
    assert row["state"] == "failed" and "its log is" in row["error"] and "Traceback" not in row["error"]
    assert os.listdir(jobs) == ["of-today"]
