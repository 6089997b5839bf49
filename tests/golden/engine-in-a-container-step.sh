#!/bin/bash
# Rendered by prorl for one submission: every process on a node of the component `engine` starts here.

# What the recipe's `cluster.setup` asks for.
module load apptainer

exec apptainer exec --nv --mount type=bind,source=/scratch/lab/runs/demo,destination=/scratch/lab/runs/demo --mount type=bind,source=/scratch/models/Qwen3-4B,destination=/scratch/models/Qwen3-4B --mount type=bind,source=/scratch/data/math.jsonl,destination=/scratch/data/math.jsonl /scratch/images/vllm.sif python3 "$@"
