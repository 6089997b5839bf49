"""What must hold of any run directory, however often its processes were killed."""

from collections import Counter

from prorl_cli.rundir import RunDir
from prorl_cli.spool.steps import read_void, steps
from prorl_cli.spool.trajectories import TrajectoryFollower
from prorl_cli.spool.verify import verify_run
from prorl_cli.trajectory import Purpose


def check_ledger(run: RunDir, final: int):
    """Positions contiguous; no record in two steps; every finished trajectory in a step or named as dropped."""
    manifests = list(steps(run))
    assert [m.position for m in manifests] == list(range(1, final + 1))
    used = Counter((ref.group, ref.member) for m in manifests for ref in m.records)
    assert max(used.values(), default=0) <= 1, "a group's member was trained on twice"
    check_nothing_lost(run, manifests, used)
    assert sorted(run.weight_folders())[-1] == final
    assert not [finding for finding in verify_run(run) if finding.kind == "corrupt"]
    return manifests


def check_nothing_lost(run, manifests, used):
    frontier = max((m.frontier for m in manifests), default=0)
    assert not [drop for m in manifests for drop in m.dropped if drop.reason == "late"], "a member hung"
    whole = {drop.group for m in manifests for drop in m.dropped if not drop.members}
    members = {(drop.group, member) for m in manifests for drop in m.dropped for member in drop.members}
    for entry in TrajectoryFollower(run).poll():
        if entry.purpose is not Purpose.TRAIN or entry.error_class is not None or entry.group >= frontier:
            continue
        key = (entry.group, entry.member)
        assert key in used or entry.group in whole or key in members, f"finished trajectory {key} is nowhere"


def voided(run, manifests):
    return [m.position for m in manifests if read_void(run, m.position) is not None]


def leftovers(run: RunDir):
    """Temporary files that a dead process left."""
    return [path for path in run.root.rglob("*") if path.name.startswith((".tmp-", ".trash", ".latest-"))]
