"""The texts of a submission: whole scripts as kept, values that cannot break out, and what bash really does with them."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_cli.errors import UserError
from prorl_cli.recipe import load_recipe
from prorl_cli.rundir import RunDir, shipped
from prorl_cli.slurm import script
from prorl_cli.slurm.plan import plan_processes
from tests import golden_scripts
from tests.test_slurm_plan import PARTS, recipe

HOSTILE = ["a b", 'q"uo\'te', "c,omma", "$HOME", "`id`", "per%cent %j", "hetjob packjob", "semi;colon", "new\nline", "back\\slash", "-n", "@{token}", "*?[a]"]  # fmt: skip


def directives(text):
    """The `#SBATCH` lines, one list a component."""
    components = [[]]
    for line in text.splitlines():
        if line == "#SBATCH hetjob":
            components.append([])
        elif line.startswith("#SBATCH "):
            components[-1].append(line.removeprefix("#SBATCH "))
    return components


def keys(lines):
    return [line.removeprefix("--").partition("=")[0] for line in lines]


@pytest.mark.parametrize("name, text", golden_scripts.rendered().items())
def test_a_script_is_what_it_was(name, text):
    assert text == (golden_scripts.FOLDER / name).read_text(), "python -m tests.golden_scripts writes them anew"


def test_no_kept_script_is_left_over_and_all_are_bash():
    files = sorted(golden_scripts.FOLDER.iterdir())
    assert [file.name for file in files] == sorted(golden_scripts.rendered())
    for file in files:
        assert subprocess.run(["bash", "-n", file], capture_output=True, text=True, check=True).stderr == ""


def test_every_component_says_what_it_needs_and_the_first_what_is_said_once():
    asked = recipe({"time": "1h", "account": "a", "qos": "q", "mail": "m@x", "licenses": "l:1", **PARTS})
    first, *others = directives(script.render(asked, Path("/run"), "token", after=7))
    once = ["job-name", "comment", "open-mode", "signal", "dependency", "mail-user", "mail-type", "licenses"]
    assert keys(first)[: len(once)] == once and '--dependency="afterany:7"' in first
    for lines in (first, *others):
        assert {"account", "qos", "time", "nodes", "ntasks-per-node", "propagate", "requeue"} <= set(keys(lines))
    assert not [key for lines in others for key in keys(lines) if key in once]
    assert not [
        key for lines in (first, *others) for key in keys(lines) if key in ("output", "error", "chdir", "export")
    ]


def test_the_end_is_announced_before_the_time_limit_to_the_script_alone():
    text = script.render(recipe({"time": "1h", "drain": "5m"}), Path("/run"), "token")
    assert '--signal="B:USR2@360"' in directives(text)[0]


def test_a_satellite_is_one_plain_job_that_waits_for_the_start_of_its_run():
    asked = recipe({"topology": "satellites", "mail": "m@x", "licenses": "l", **PARTS})
    (lines,) = directives(script.render(asked, Path("/run"), "token", after=7, satellite=1))
    assert '--dependency="after:7"' in lines and '--nodes="1"' in lines and '--job-name="t-rollout-1"' in lines
    assert not {"mail-user", "licenses"} & set(keys(lines))


def test_every_shipped_recipe_for_a_cluster_has_a_script():
    shipped_for_slurm = [
        one for one in map(load_recipe, sorted(shipped("recipes").glob("*.yaml"))) if one.cluster.executor == "slurm"
    ]
    assert {one.name for one in shipped_for_slurm} == {"cluster", "ci-cluster"}
    for one in shipped_for_slurm:
        assert len(directives(script.render(one, Path("/run"), "token"))) == 3


@pytest.mark.parametrize("name", HOSTILE)
def test_a_path_never_reaches_a_directive(name):
    asked = recipe({"engine": {"image": f"/{name}.sif"}, "templates": ""})
    plain, hostile = (script.render(asked, Path("/runs") / folder, "token") for folder in ("plain", name))
    assert directives(plain) == directives(hostile)


def test_a_run_named_like_a_separator_is_not_one():
    asked = recipe({}).model_copy(update={"name": "my-HetJob.packjob"})
    text = script.render(asked, Path("/run"), "token")
    assert not re.search(
        "hetjob|packjob", "\n".join(line for lines in directives(text) for line in lines), re.IGNORECASE
    )


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" "), min_size=1))
def test_a_directive_is_one_word_whatever_its_value(value):
    asked = recipe({}).cluster.rollout.model_copy(update={"constraint": value})
    cluster = recipe({}).cluster.model_copy(update={"rollout": asked})
    if re.search("hetjob|packjob", value, re.IGNORECASE):
        return
    text = script.render(recipe({}).model_copy(update={"cluster": cluster}), Path("/run"), "token")
    (line,) = [line for line in directives(text)[0] if line.startswith("--constraint")]
    assert shlex.split(line) == [f"--constraint={value}"]


def test_what_slurm_would_misunderstand_is_not_rendered():
    with pytest.raises(UserError, match=r"cluster\.engine\.account is not set"):
        script.render(recipe({"rollout": {"account": "a"}}), Path("/run"), "token")


@pytest.mark.parametrize(
    "name, values",
    [
        ("job.sh", {"directives", "run_dir", "token", "python", "setup"}),
        ("step.sh", {"component", "setup", "interpreter"}),
    ],
)
def test_a_template_uses_exactly_what_it_is_given(name, values):
    text = (shipped("slurm_templates") / name).read_text()
    assert set(re.findall(r"@\{(\w+)\}", text)) == values


def test_a_folder_of_ones_own_replaces_one_file_and_leaves_the_other(tmp_path):
    (tmp_path / "step.sh").write_text('#!/bin/bash\n# mine, by me@home ${not[@]} $ours\nexec @{interpreter} "$@"\n')
    asked = recipe({"templates": str(tmp_path)})
    steps = script.render_steps(asked, Path("/run"), python="py")
    assert steps["engine"] == '#!/bin/bash\n# mine, by me@home ${not[@]} $ours\nexec py "$@"\n'
    assert script.render(asked, Path("/run"), "t") == script.render(recipe({}), Path("/run"), "t")


def test_an_unknown_placeholder_of_ones_own_is_named(tmp_path):
    (tmp_path / "job.sh").write_text("@{directives} @{nodes}\n")
    with pytest.raises(UserError, match=r"job\.sh: unknown placeholder nodes; there are directives"):
        script.render(recipe({"templates": str(tmp_path)}), Path("/run"), "t")


def deaf_to_nothing():
    """Tests under nohup hand on an ignored SIGHUP, which bash then cannot hear."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Batch:
    """A rendered script under real bash, with a program of the test's own in the supervisor's place."""

    def __init__(self, folder, body, name="run", setup=""):
        self.run = RunDir(folder / name)
        self.run.submission("token").mkdir(parents=True)
        self.supervisor = folder / "super visor"
        self.supervisor.write_text(f"#!/bin/bash\n{body}\n")
        self.supervisor.chmod(0o700)
        asked = recipe({"setup": setup})
        self.run.script("token").write_text(script.render(asked, self.run.root, "token", python=str(self.supervisor)))

    def start(self, **environment):
        return subprocess.Popen(
            ["bash", self.run.script("token")], stdout=subprocess.PIPE, text=True, cwd=self.run.submission("token"),
            env={**os.environ, **environment}, preexec_fn=deaf_to_nothing,
        )  # fmt: skip

    def end(self):
        """Run it to its end: its exit code."""
        with self.start() as job:
            job.communicate(timeout=20)
            return job.returncode

    def record(self):
        return json.loads(self.run.batch_exit("token").read_text())


def until(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("name", HOSTILE)
def test_the_supervisor_gets_the_run_directory_whatever_its_name(tmp_path, name):
    batch = Batch(tmp_path, 'printf "%s\\0" "$@"; exit 3', name)
    job = batch.start(SLURM_JOB_ID="42", SLURM_RESTART_COUNT="1")
    assert job.communicate()[0].split("\0")[:-1] == ["-m", "prorl_cli.slurm", str(batch.run.root), "token"]
    assert job.returncode == 3
    assert batch.record().items() >= {"code": 3, "job": 42, "restart": 1}.items()
    assert abs(batch.record()["ended"] - time.time()) < 60


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_script_reaches_the_supervisor_and_its_exit_code_comes_back(tmp_path, number):
    name = number.name.removeprefix("SIG")
    batch = Batch(tmp_path, f"trap 'echo got {name}; exit 5' {name}\ntouch ready\nwhile :; do sleep 0.05; done")
    job = batch.start()
    until((batch.run.submission("token") / "ready").exists, "the supervisor did not start")
    job.send_signal(number)
    assert job.communicate(timeout=20)[0] == f"got {name}\n"
    assert job.returncode == 5 and batch.record()["code"] == 5


def test_many_signals_do_not_end_the_wait(tmp_path):
    body = "trap 'echo x >>got' USR2\ntouch ready\nuntil [ -e end ]; do sleep 0.02; done\nexit 7"
    batch = Batch(tmp_path, body)
    job, folder = batch.start(), batch.run.submission("token")
    until((folder / "ready").exists, "the supervisor did not start")
    for round_ in range(1, 11):
        job.send_signal(signal.SIGUSR2)
        until(lambda n=round_: (folder / "got").exists() and len((folder / "got").read_text().split()) >= n, "lost")
        assert job.poll() is None
    (folder / "end").touch()
    job.communicate(timeout=20)
    assert job.returncode == 7 and batch.record()["code"] == 7


def test_a_signal_during_the_setup_is_handed_on_when_the_supervisor_is_there(tmp_path):
    batch = Batch(tmp_path, "trap 'exit 9' TERM\nwhile :; do sleep 0.05; done", setup="touch setting; sleep 1")
    job = batch.start()
    until((batch.run.submission("token") / "setting").exists, "the setup did not start")
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=20)
    assert job.returncode in (9, 128 + signal.SIGTERM)  # the latter when it came before the supervisor's own trap


def test_a_supervisor_that_is_killed_or_missing_is_in_the_record(tmp_path):
    killed = Batch(tmp_path, "kill -KILL $$", "killed")
    assert killed.end() == 128 + signal.SIGKILL == killed.record()["code"]
    missing = Batch(tmp_path, "", "missing")
    missing.supervisor.unlink()
    assert missing.end() == 127 == missing.record()["code"]


def test_a_setup_that_ends_the_script_is_in_the_record(tmp_path):
    batch = Batch(tmp_path, "echo never", setup="token=mine; python=mine; exit 4")
    job = batch.start()
    assert job.communicate(timeout=20)[0] == ""
    assert batch.record()["code"] == 4


def test_a_step_runs_after_the_setup_of_its_node(tmp_path):
    run = RunDir(tmp_path / "a b")
    run.submission("token").mkdir(parents=True)
    asked = recipe({"setup": "export WHERE=here"})
    python = tmp_path / "py thon"
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$WHERE" "$@"\n')
    python.chmod(0o700)
    for name, text in script.render_steps(asked, run.root, python=str(python)).items():
        run.step_script("token", name).write_text(text)
    for process in plan_processes(asked, has_weights=False).roles:
        command = script.step_command(run, "token", process)
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")[:-1]
        assert said == ["here", "-m", f"prorl_cli.{process.room}", str(run.root)]


def test_a_container_sees_the_run_the_model_and_the_data_at_their_own_paths(tmp_path):
    asked = recipe({"engine": {"image": "/images/my engine.sif", "gpus": 1}}).model_copy(update={"model": '/m,"odel'})
    step = script.render_steps(asked, Path("/run dir"))["engine"]
    words = shlex.split(step.splitlines()[-1])
    assert words[:4] == ["exec", "apptainer", "exec", "--nv"] and words[-3:] == [
        "/images/my engine.sif",
        "python3",
        "$@",
    ]
    assert "type=bind,source=/run dir,destination=/run dir" in words
    assert 'type=bind,"source=/m,""odel","destination=/m,""odel"' in words
    assert "apptainer" not in script.render_steps(asked, Path("/run dir"))["learner"]
