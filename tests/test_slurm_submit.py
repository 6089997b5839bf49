"""One submission is one job, whatever the controller forgets to answer; a refusal leaves nothing behind.

The real Slurm cannot be made to lose an answer, so here `sbatch` and `squeue` are scripts; tests/cluster has the real.
"""

import json

import pytest

from prorl_cli.cli.queueing import shown_submission
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.commands import ControllerDown, NotInstalled, Refused
from prorl_cli.slurm.submit import BACK_OFF_S, new_token, read_job, read_request, record_job, submit
from tests.test_slurm_plan import PARTS, recipe

LOST = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "a run, with $signs")
    run.create()
    return run


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Puts scripts in the place of Slurm's commands; each notes its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(**bodies):
        for name, body in bodies.items():
            note = f'printf "%s|" "$PWD" "$@" >>{folder}/{name}.calls; echo >>{folder}/{name}.calls'
            (folder / name).write_text(f"#!/bin/bash\ncd -P .\n{note}\nn=$(wc -l <{folder}/{name}.calls)\n{body}\n")
            (folder / name).chmod(0o700)
        return lambda name: (
            (folder / f"{name}.calls").read_text().splitlines() if (folder / f"{name}.calls").exists() else []
        )

    return install


class Clock:
    def __init__(self):
        self.slept = []

    def __call__(self, seconds):
        self.slept.append(seconds)


def test_one_call_of_sbatch_without_an_option_that_a_component_could_feel(run, commands):
    calls = commands(sbatch="echo '42;cluster7'")
    assert submit(run, recipe(PARTS), "token", after=7) == 42
    assert calls("sbatch") == [f"{run.submission('token')}|--parsable|job.sh|"]
    assert run.sbatch_line("token").read_text().endswith("&& sbatch --parsable job.sh\n")
    job = read_job(run, "token")
    assert (job.job_id, job.cluster, job.satellite) == (42, "cluster7", None)
    assert read_request(run, "token").after == 7
    assert json.loads(run.submitted_recipe("token").read_text())["cluster"]["engine"]["gpus"] == 4


def test_what_the_users_shell_says_to_sbatch_is_not_heard(run, commands, monkeypatch):
    for name in ("SBATCH_PARTITION", "SLURM_HET_SIZE", "SLURM_CPU_BIND", "SRUN_CPUS_PER_TASK", "TMPDIR", "PMI_RANK"):
        monkeypatch.setenv(name, "spoiled")
    commands(sbatch="env | grep -q spoiled && exit 1\necho 42")
    assert submit(run, recipe(PARTS), "token") == 42


def test_a_lost_answer_is_looked_up_before_anything_is_sent_again(run, commands):
    calls, clock = commands(sbatch=LOST, squeue="echo '40|40|'; echo '43|42+1|prorl:token'"), Clock()
    assert submit(run, recipe(PARTS), "token", sleep=clock) == 42
    assert len(calls("sbatch")) == 1 and clock.slept == [0.0, BACK_OFF_S[0]]
    assert submit(run, recipe(PARTS), "token", sleep=clock) == 42
    assert len(calls("sbatch")) == 1


def test_a_submission_that_never_arrived_is_sent_again(run, commands):
    calls = commands(sbatch=f"if [ $n -lt 3 ]; then {LOST}; fi; echo 50", squeue="echo '49|49|prorl:another'")
    assert submit(run, recipe(PARTS), "token", sleep=Clock()) == 50
    assert len(calls("sbatch")) == 3


def test_a_queue_that_cannot_be_asked_is_not_an_empty_one(run, commands):
    calls = commands(
        sbatch=LOST,
        squeue="if [ $n -lt 3 ]; then echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1; fi\n"
        "echo '42|42|prorl:token'",
    )
    assert submit(run, recipe(PARTS), "token", sleep=Clock()) == 42
    assert (len(calls("sbatch")), len(calls("squeue"))) == (1, 3)


def test_a_controller_that_stays_silent_is_given_up_and_the_submission_can_be_taken_up_again(run, commands):
    calls, clock = commands(sbatch=LOST, squeue="true"), Clock()
    with pytest.raises(ControllerDown):
        submit(run, recipe(PARTS), "token", sleep=clock)
    assert len(calls("sbatch")) == 1 + len(BACK_OFF_S) and clock.slept == [0.0, *BACK_OFF_S]
    commands(sbatch="echo never", squeue="echo '51|51|prorl:token'")
    assert submit(run, recipe(PARTS), "token", sleep=clock) == 51


def test_a_refusal_leaves_no_submission(run, commands):
    commands(sbatch="echo 'sbatch: error: invalid partition specified: gpuu' >&2; exit 1")
    with pytest.raises(Refused, match="invalid partition specified: gpuu"):
        submit(run, recipe(PARTS), "token")
    assert run.tokens() == []


def test_without_slurm_nothing_is_left_and_it_is_said(run, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotInstalled, match="no `sbatch` here"):
        submit(run, recipe(PARTS), "token")
    assert run.tokens() == []


def test_the_job_that_spoke_first_is_the_job_of_the_submission(run, commands):
    commands(sbatch="echo 42")
    submit(run, recipe({"topology": "satellites", **PARTS}), "token", satellite=1)
    assert record_job(run, "token", 42) == 42 and record_job(run, "token", 43) == 42
    assert read_job(run, "token").satellite == 1


def test_a_job_that_starts_before_sbatch_returns_is_the_same(run, commands):
    record = 'printf \'{"token":"token","job_id":42,"submitted_at":1.5}\' >"$PWD/job.json"'
    commands(sbatch=f"{record}\necho 42")
    assert submit(run, recipe(PARTS), "token") == 42 and read_job(run, "token").submitted_at == 1.5


def test_tokens_are_never_the_same():
    assert len({new_token() for _ in range(1000)}) == 1000


def test_a_preview_needs_no_slurm_and_says_the_same_each_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    asked = recipe({"topology": "satellites", **PARTS})
    first, second = (shown_submission(asked, tmp_path / "run") for _ in range(2))
    assert first == second and not (tmp_path / "run").exists()
    assert "&& sbatch --parsable job.sh" in first and first.count("#!/bin/bash\n#SBATCH") == 2
