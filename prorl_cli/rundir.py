"""Names and opens everything in a run directory; finds the recipes, templates and sif_defs that prorl ships.

Nobody else joins these names. Three words: an *attempt* is one Slurm or local job of the run; an *incarnation*
is one process, `<role>-<node>-<attempt>-<random>`, never reused; a *try* is one trial of one trajectory.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from prorl_cli.errors import RunDirError

FORMAT = 2
"""Version of the run directory's layout and records; another one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One process of a run."""

    role: str
    node: str
    attempt: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.role}-{self.node}-{self.attempt}-{self.nonce}"

    @classmethod
    def new(cls, role: str, node: str, attempt: int) -> Incarnation:
        """A name never used before; `node` is reduced to letters, digits, dot and dash."""
        clean = re.sub(r"[^A-Za-z0-9.-]", "-", node) or "node"
        return cls(role=role, node=clean, attempt=attempt, nonce=secrets.token_hex(4))

    @classmethod
    def parse(cls, name: str) -> Incarnation:
        """Inverse of `str`; ValueError for anything else."""
        match = re.fullmatch(r"([a-z]+)-(.+)-(\d+)-([0-9a-f]{8})", name)
        if not match:
            raise ValueError(f"not an incarnation's name: {name!r}")
        return cls(role=match[1], node=match[2], attempt=int(match[3]), nonce=match[4])


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run."""

    root: Path

    # what was asked
    @property
    def recipe(self) -> Path:
        return self.root / "recipe.yaml"

    def resolved(self, attempt: int) -> Path:
        return self.root / f"resolved.{attempt}.json"

    @property
    def provenance(self) -> Path:
        return self.root / "provenance.json"

    @property
    def code(self) -> Path:
        return self.root / "code"

    # attempts
    @property
    def jobs(self) -> Path:
        return self.root / "job"

    def job(self, attempt: int) -> Path:
        return self.jobs / str(attempt)

    def claim(self, attempt: int) -> Path:
        """Its exclusive creation is what makes an attempt number somebody's."""
        return self.job(attempt) / "claim.json"

    def plan(self, attempt: int) -> Path:
        return self.job(attempt) / "topology.json"

    def stop(self, attempt: int) -> Path:
        return self.job(attempt) / "stop.json"

    def restore(self, attempt: int) -> Path:
        """The checkpoint that the attempt was told to go back to."""
        return self.job(attempt) / "restore.json"

    def rendezvous(self, attempt: int, key: str) -> Path:
        """Where the ranks of one start of the learner find rank 0."""
        return self.job(attempt) / f"ranks-{key}.json"

    def exit(self, attempt: int) -> Path:
        return self.job(attempt) / "exit.json"

    def submission(self, token: str) -> Path:
        """One sbatch: its script, the recipe as resolved, and the job that it became."""
        return self.jobs / f"submitted-{token}"

    def script(self, token: str) -> Path:
        return self.submission(token) / "job.sh"

    def step_script(self, token: str, component: str) -> Path:
        """What every process on a node of `component` is started through."""
        return self.submission(token) / f"step-{component}.sh"

    def sbatch_line(self, token: str) -> Path:
        return self.submission(token) / "sbatch"

    def submitted_recipe(self, token: str) -> Path:
        return self.submission(token) / "resolved.json"

    def request(self, token: str) -> Path:
        """Written before sbatch is called."""
        return self.submission(token) / "request.json"

    def job_record(self, token: str) -> Path:
        """Written when sbatch has answered."""
        return self.submission(token) / "job.json"

    def batch_exit(self, token: str) -> Path:
        """Written by the batch script itself at its end."""
        return self.submission(token) / "batch.json"

    def job_log(self, token: str, job_id: int) -> Path:
        """Where Slurm puts what the batch script says, when it is told nothing else."""
        return self.submission(token) / f"slurm-{job_id}.out"

    def tokens(self) -> list[str]:
        """Tokens of all submissions."""
        names = (entry.name for entry in os.scandir(self.jobs)) if self.jobs.is_dir() else ()
        return sorted(name.removeprefix("submitted-") for name in names if name.startswith("submitted-"))

    # who is alive
    @property
    def endpoints(self) -> Path:
        return self.root / "endpoints"

    def endpoint(self, incarnation: str) -> Path:
        return self.endpoints / f"{incarnation}.json"

    def obituary(self, incarnation: str) -> Path:
        """Written by whoever saw the process end."""
        return self.endpoints / f"{incarnation}.exit"

    @property
    def data_token(self) -> Path:
        return self.root / "secret" / "data.token"

    @property
    def admin_token(self) -> Path:
        return self.root / "secret" / "admin.token"

    @property
    def certificate(self) -> Path:
        """What every listener of this run shows and every client demands."""
        return self.root / "secret" / "tls.crt"

    @property
    def private_key(self) -> Path:
        return self.root / "secret" / "tls.key"

    # the spool
    @property
    def requests(self) -> Path:
        return self.root / "spool" / "requests"

    def request_log(self, worker: str, writer: str) -> Path:
        """The log that coordinator `writer` keeps for `worker`."""
        return self.requests / worker / writer

    @property
    def trajectories(self) -> Path:
        return self.root / "spool" / "trajectories"

    def trajectory_log(self, worker: str) -> Path:
        return self.trajectories / worker

    @property
    def steps(self) -> Path:
        return self.root / "spool" / "steps"

    def step(self, position: int) -> Path:
        return self.steps / f"{position:06d}.json"

    def void(self, position: int) -> Path:
        return self.steps / f"{position:06d}.void.json"

    @property
    def evals(self) -> Path:
        return self.root / "spool" / "evals"

    def evaluation(self, version: int) -> Path:
        return self.evals / f"{version:06d}.json"

    # weights, checkpoints, observations
    @property
    def weights(self) -> Path:
        return self.root / "weights"

    def weight(self, version: int, lineage: str = "") -> Path:
        return self.weights / (f"{version:06d}.{lineage}" if lineage else f"{version:06d}")

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{step:06d}"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics"

    def metric(self, incarnation: str) -> Path:
        return self.metrics / f"{incarnation}.jsonl"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, attempt: int, name: str) -> Path:
        return self.logs / str(attempt) / f"{name}.log"

    @property
    def latest_logs(self) -> Path:
        return self.logs / "latest"

    def create(self) -> None:
        """Make the tree, 0700, with fresh tokens; `RunDirError` when `root` exists and is not empty."""
        try:
            if self.root.exists() and any(self.root.iterdir()):
                raise RunDirError(
                    f"{self.root} is not empty: choose another --run-dir, or `prorl resume {self.root}` if it is a run"
                )
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.root.chmod(0o700)
            for folder in self._folders():
                folder.mkdir(parents=True, exist_ok=True)
            for token in (self.data_token, self.admin_token):
                _write_private(token, secrets.token_urlsafe(32))
            _write_private(self.provenance, json.dumps({"format": FORMAT}))
        except RunDirError:
            raise
        except OSError as error:
            raise RunDirError(f"cannot create the run directory {self.root}: {error.strerror or error}") from error

    def secure(self, certificate: str, key: str) -> None:
        """Keep the certificate and the key (both PEM) that this run's listeners show."""
        _write_private(self.certificate, certificate)
        _write_private(self.private_key, key)

    def _folders(self) -> tuple[Path, ...]:
        return (
            self.code, self.jobs, self.endpoints, self.data_token.parent, self.requests, self.trajectories,
            self.steps, self.evals, self.weights, self.checkpoints, self.metrics, self.logs,
        )  # fmt: skip

    @classmethod
    def open(cls, root: Path) -> RunDir:
        """An existing run of this version; `RunDirError` says what is wrong otherwise."""
        run = cls(Path(root).absolute())
        try:
            found = json.loads(run.provenance.read_text())["format"]
        except FileNotFoundError:
            raise RunDirError(f"{root} is not a run directory (no {run.provenance.name}): see `prorl ls`") from None
        except (OSError, ValueError, KeyError) as error:
            raise RunDirError(f"cannot read {run.provenance}: {error}") from error
        if found != FORMAT:
            raise RunDirError(
                f"{root} was written by another version of prorl (layout {found}, this one reads {FORMAT}): "
                "use the version named in its provenance.json"
            )
        return run

    def attempts(self) -> list[int]:
        """Attempt numbers claimed so far, ascending."""
        names = (entry.name for entry in os.scandir(self.jobs)) if self.jobs.is_dir() else ()
        return sorted(int(name) for name in names if name.isdigit() and self.claim(int(name)).exists())

    def positions(self) -> list[int]:
        """Positions of the step log, ascending."""
        return sorted(int(match[1]) for name in os.listdir(self.steps) if (match := _STEP.fullmatch(name)))

    def weight_folders(self) -> dict[int, str]:
        """Complete weight versions and the lineage to read each from (the newest made wins)."""
        return _numbered(self.weights)

    def checkpoint_steps(self) -> list[int]:
        """Complete checkpoints, ascending."""
        return sorted(_numbered(self.checkpoints))


_STEP = re.compile(r"(\d{6,})\.json")
_NUMBERED = re.compile(r"(\d{6,})(?:\.(\d+-[0-9a-f]+))?")


def _numbered(folder: Path) -> dict[int, str]:
    """`000012` and `000012.<lineage>` folders; a lineage is `<ordinal>-<hex>`, and the highest ordinal wins."""
    found: dict[int, tuple[int, str]] = {}
    for name in os.listdir(folder):
        if match := _NUMBERED.fullmatch(name):
            lineage = match[2] or ""
            rank = (int(lineage.split("-")[0]) if lineage else 0, lineage)
            found[int(match[1])] = max(found.get(int(match[1]), (-1, "")), rank)
    return {number: lineage for number, (_, lineage) in sorted(found.items())}


def _write_private(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def find_recipe(file: Path, here: Path = Path()) -> Path:
    """The file itself, seen from `here`, or the recipe of that name that prorl ships."""
    named = shipped("recipes") / f"{file.stem}.yaml"
    return named if len(file.parts) == 1 and named.is_file() and not (here / file).is_file() else here / file


def shipped(kind: str) -> Path:
    """Folder of what prorl ships (`recipes`, `slurm_templates`, `sif_defs`), from a wheel or from a checkout."""
    package = Path(__file__).parent
    for folder in (package / "_shipped" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise RunDirError(f"this installation of prorl lacks its {kind} folder: reinstall it")
