"""What the quickstart gains comes from its rewards: with the same rewards in a shuffled order it gains nothing."""

import subprocess
import sys

import pytest

from prorl_cli.rundir import RunDir
from prorl_cli.spool.evals import read_evaluation
from tests.quick_run import ROOT

STEPS = 15
N = 1024
"""Held-out tasks: the standard error of a gain is then .02."""


@pytest.mark.soak
def test_the_quickstart_with_shuffled_rewards_gains_less_than_five_points(tmp_path):
    """Shortened; the true rewards gain twenty points in as many steps. The warm start is the demo's own, cached."""
    settings = (f"learner.steps={STEPS}", f"eval.n={N}", "learner.shuffle_rewards=true", "seed=1")
    options = [part for setting in settings for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "prorl_cli",
        "launch",
        "recipes/quickstart.yaml",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    subprocess.run([*command, *options], cwd=ROOT, check=True)
    run = RunDir.open(tmp_path / "run")
    before, after = read_evaluation(run, 0), read_evaluation(run, STEPS)
    assert before.n == after.n == N
    assert 0.20 <= before.pass_at_1 <= 0.50
    assert after.pass_at_1 - before.pass_at_1 < 0.05
