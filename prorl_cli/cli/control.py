"""Commands that act on a run: `stop`, `export`, `spool verify`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from prorl_cli.cli.claim import at_work
from prorl_cli.cli.queueing import stop_jobs
from prorl_cli.errors import ProrlError, UserError
from prorl_cli.fsio import publish_folder, temporary_folder
from prorl_cli.recipe.units import parse_duration
from prorl_cli.rundir import RunDir
from prorl_cli.slurm.queued import submitted
from prorl_cli.spool.evals import evaluations
from prorl_cli.spool.members import StopOrder, current_attempt, order_stop, read_outcome
from prorl_cli.spool.verify import verify_run
from prorl_cli.spool.weights import latest_weights, read_weights, verify_weights


def stop(root: Path, now: bool, deadline: str) -> str:
    """Order the stop; the run's coordinator carries it out."""
    run = RunDir.open(root)
    attempt = current_attempt(run)
    try:
        seconds = 0.0 if now else parse_duration(deadline)
    except ValueError as error:
        raise UserError(f"--deadline: {error}") from None
    order = StopOrder(mode="now" if now else "drain", deadline_s=seconds)
    follow = f"follow it with `prorl status {root}`, go on later with `prorl resume {root}`"
    if submitted(run) and (done := stop_jobs(run, order)):
        return f"{done}; {follow}"
    if outcome := read_outcome(run, attempt):
        return f"{root} has already ended: {outcome.state}"
    if not at_work(run, attempt):
        return f"{root} is not running: nothing to stop; `prorl resume {root}` goes on"
    order_stop(run, attempt, order)
    return f"stop ordered; {follow}"


def export(root: Path, out: Path, best: bool) -> str:
    """Copy verified weights to `out`, whole or not at all."""
    run = RunDir.open(root)
    version = _best(run) if best else latest_weights(run)
    found = read_weights(run, version)
    if found is None:
        raise UserError(f"{root} holds no weights yet (asked for version {version})")
    folder, manifest = found
    if problems := verify_weights(folder):
        raise ProrlError(f"the weights in {folder} are damaged: {'; '.join(problems)}")
    _copy_whole(folder, tuple(manifest.files), out.absolute())
    return f"weights {version} of {root} → {out}"


def _copy_whole(folder: Path, names: tuple[str, ...], out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_folder(out.parent)
        try:
            for name in names:
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / name, temporary / name)
            made = publish_folder(temporary, out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error}") from error
    if not made:
        raise UserError(f"{out} exists already: choose a new folder")


def _best(run: RunDir) -> int:
    scores = {
        version: found.pass_at_1 for version, found in evaluations(run).items() if version in run.weight_folders()
    }
    if not scores:
        raise UserError("no evaluated weights are kept in this run: export without --best")
    return max(scores, key=lambda version: (scores[version], version))


def _verdict(findings: int) -> str:
    if not findings:
        return "every stored byte is as it was written"
    return (
        f"findings: {findings}. `truncated` and `incomplete` are the last, unfinished writes of killed or running "
        "processes, and nothing committed is lost; `corrupt` is damage"
    )


def verify(root: Path, as_json: bool) -> int:
    """Print every finding; 0 when nothing is corrupt, else 1."""
    findings = list(verify_run(RunDir.open(root)))
    rows = [{"file": str(f.file), "offset": f.offset, "kind": f.kind, "what": f.what} for f in findings]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(f"{row['file']}:{row['offset']}: {row['kind']}: {row['what']}")
        print(_verdict(len(rows)))
    return 1 if any(row["kind"] == "corrupt" for row in rows) else 0
