"""The environment that Slurm's commands get: what a user's shell, or a job around it, set for others is left out.

`SBATCH_PARTITION` overrides every component of a script, `SQUEUE_FORMAT` changes what is parsed, and what a job exports
(`SLURM_HET_SIZE`, `SLURM_CPU_BIND`) kills or slows the steps of a job submitted from inside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

KEPT = frozenset(["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"])
"""How this machine reaches its Slurm; everything else of `SLURM_*` is about somebody's job."""

DROPPED_PREFIXES = (
    "SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SACCTMGR_", "SINFO_", "SCANCEL_",
    "SCONTROL_", "SPRIO_", "PMI", "OMPI_", "MPI_", "DBUS_",
)  # fmt: skip

DROPPED = frozenset(["TMPDIR", "DISPLAY", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"])
"""True of this machine only, and `sbatch` would export them to all others."""


def scrubbed(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` for a Slurm command, in a locale that every node has."""
    kept = {name: value for name, value in environment.items() if name in KEPT or not _dropped(name)}
    return {**kept, "LC_ALL": "C.UTF-8"}


def _dropped(name: str) -> bool:
    return name in DROPPED or name.startswith(DROPPED_PREFIXES)
