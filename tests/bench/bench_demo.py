"""The quickstart, shortened: who idles, whether learner and engine overlap, what prorl itself costs a trajectory.

`python -m tests.bench.bench_demo OUT.json`; shares and seconds of one run. There is no peer: the columns are null.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from prorl_cli.metrics import read_rows
from prorl_cli.rundir import RunDir
from prorl_cli.spool.trajectories import iterate_trajectories
from prorl_cli.trajectory import Purpose

ROOT = Path(__file__).parent.parent.parent
STEPS = 15


def cell(name, value, unit):
    return {"cell": name, "ours": round(value, 5), "peer": None, "unit": unit, "ratio": None, "bar": None, "met": None}


def idle_cells(status):
    for role in status["roles"]:
        if role["idle"] is not None:
            yield cell(f"{role['role']} idles", role["idle"], "share of its time")


def overlap_cell(run):
    """Trained on tokens one version old = the learner trained while the engine already sampled the next step."""
    lags = [row["staleness"] for row in read_rows(run, "step") if row["step"] > 1]
    return cell(
        "steps sampled while the learner trained the one before", statistics.mean(lag >= 1 for lag in lags), "share"
    )


def ours_cell(run):
    costs = [
        t.timings.init + max(0.0, t.timings.run - t.timings.llm - t.timings.tool)
        for t in iterate_trajectories(run)
        if t.purpose is Purpose.TRAIN and t.error_class is None
    ]
    return cell("prorl's own time outside model, tool and verifier", statistics.mean(costs), "s a trajectory")


def main(out):
    with tempfile.TemporaryDirectory(prefix="prorl-bench-") as folder:
        root = Path(folder) / "run"
        options = ["--run-dir", str(root), "--set", f"learner.steps={STEPS}", "--set", "eval.n=0"]
        launch = [sys.executable, "-m", "prorl_cli", "launch", "recipes/quickstart.yaml", *options]
        subprocess.run(launch, cwd=ROOT, check=True)
        command = [sys.executable, "-m", "prorl_cli", "status", str(root), "--json"]
        status = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
        run = RunDir.open(root)
        steps = list(read_rows(run, "step"))
        cells = [*idle_cells(status), overlap_cell(run), ours_cell(run)]
        cells.append(cell("one step, learner", statistics.median(row["step_s"] for row in steps), "s"))
        cells.append(cell("one step, wall clock", (steps[-1]["t"] - steps[0]["t"]) / (len(steps) - 1), "s"))
    Path(out).write_text(json.dumps(cells, indent=2) + "\n")
    for row in cells:
        print(f"{row['cell']:<60} {row['ours']:>9.4f} {row['unit']}")


if __name__ == "__main__":
    main(sys.argv[1])
