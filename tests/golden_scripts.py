"""The scripts of seven shapes of cluster, whole: `python -m tests.golden_scripts` writes them anew into tests/golden.

Whoever changes one reads the difference before committing it: these are what users' clusters will be given.
"""

import json
from pathlib import Path

from prorl_cli.recipe import Recipe
from prorl_cli.slurm import script

FOLDER = Path(__file__).parent / "golden"

ROOT = Path("/scratch/lab/runs/demo")
TOKEN = "0123456789ab"
PYTHON = "/home/lab/venv/bin/python"

BASE = {
    "name": "demo", "model": "/scratch/models/Qwen3-4B",
    "tasks": [{"domain": "math", "source": "/scratch/data/math.jsonl"}],
    "engine": {"kind": "vllm"}, "learner": {"backend": "deepspeed", "zero": 2},
}  # fmt: skip

SHAPES = {
    "one-gpu-partition": {
        "time": "24h",
        "rollout": {"partition": "gpu", "nodes": 1, "cpus": 16, "memory": "64GiB"},
        "engine": {"partition": "gpu", "nodes": 2, "cpus": 16, "memory": "64GiB", "gpus": 8},
        "learner": {"partition": "gpu", "nodes": 1, "cpus": 16, "memory": "64GiB", "gpus": 8},
    },
    "separate-cpu-partition": {
        "time": "36h", "chain": 3, "mail": "me@lab.org", "licenses": "data:1",
        "rollout": {"partition": "cpu", "nodes": 4, "cpus": 64, "memory": "240GiB"},
        "engine": {"partition": "gpu", "nodes": 2, "cpus": 32, "memory": "500GiB", "gpus": 4, "gpu_type": "h100"},
        "learner": {"partition": "gpu", "nodes": 1, "cpus": 32, "memory": "500GiB", "gpus": 4, "gpu_type": "h100"},
        "setup": "module load apptainer cuda\nsource /home/lab/venv/bin/activate\n",
    },
    "account-qos-constraint": {
        "time": "12h", "account": "abc123", "qos": "normal", "requeue": False,
        "rollout": {"partition": "cpu", "constraint": "milan|rome", "qos": "cpu", "cpus": 32, "reservation": "course"},
        "engine": {"partition": "gpu", "constraint": "[rack1|rack2]&nvlink", "gpus": 4, "reservation": "course"},
        "learner": {"partition": "gpu", "gpus": 4, "reservation": "course", "extra": ["--switches=1@10:00", "--contiguous"]},
    },
    "satellites": {
        "time": "24h", "topology": "satellites", "mail": "me@lab.org",
        "control": {"partition": "cpu", "memory": "8GiB"},
        "rollout": {"partition": "preempt", "nodes": 16, "cpus": 32, "memory": "120GiB"},
        "engine": {"partition": "gpu", "nodes": 2, "gpus": 8, "memory": "500GiB"},
        "learner": {"partition": "gpu", "nodes": 1, "gpus": 8, "memory": "500GiB"},
    },
    "single": {
        "time": "8h", "topology": "single", "gpu_option": "gpus-per-node",
        "rollout": {"nodes": 1}, "engine": {"nodes": 2, "gpus": 4},
        "learner": {"partition": "gpu", "nodes": 1, "gpus": 4, "gpu_type": "a100", "cpus": 48, "memory": "480GiB"},
    },
    "exclusive-nodes": {
        "time": "2d", "drain": "10m",
        "rollout": {"partition": "cpu", "nodes": 2, "exclusive": True},
        "engine": {"partition": "gpu", "nodes": 2, "gpus": 8, "exclusive": True},
        "learner": {"partition": "gpu", "nodes": 2, "gpus": 8, "exclusive": True},
    },
    "engine-in-a-container": {
        "time": "24h", "setup": "module load apptainer",
        "rollout": {"partition": "cpu", "cpus": 32},
        "engine": {"partition": "gpu", "gpus": 8, "image": "/scratch/images/vllm.sif"},
        "learner": {"partition": "gpu", "gpus": 8},
    },
}  # fmt: skip


def recipe(shape):
    cluster = {"executor": "slurm", **SHAPES[shape]}
    return Recipe.model_validate_json(json.dumps({**BASE, "cluster": cluster}))


def rendered():
    """File name → text."""
    found = {}
    for shape in SHAPES:
        asked = recipe(shape)
        after = 4711 if asked.cluster.chain else None
        found[f"{shape}.sh"] = script.render(asked, ROOT, TOKEN, python=PYTHON, after=after)
        if asked.cluster.topology == "satellites":
            found[f"{shape}-rollout.sh"] = script.render(asked, ROOT, TOKEN, python=PYTHON, after=4711, satellite=3)
        if asked.cluster.engine.image:
            found[f"{shape}-step.sh"] = script.render_steps(asked, ROOT, python=PYTHON)["engine"]
    return found


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.sh"):
        old.unlink()
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)
        print(FOLDER / name)


if __name__ == "__main__":
    main()
