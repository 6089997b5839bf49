"""The last manifest of the step log, past damaged ones that the learner has voided."""

from __future__ import annotations

import msgspec

from prorl_cli.errors import CorruptRecord
from prorl_cli.rundir import RunDir
from prorl_cli.spool.steps import last_position, read_step, read_void
from prorl_cli.trajectory import StepManifest


def last_manifest(run: RunDir) -> StepManifest | None:
    """Where a coordinator goes on; None before the first position.

    A damaged manifest that was voided changed nothing, so its groups are still to be consumed: what is returned is the
    last intact one, at the position of the last. `CorruptRecord` when a damaged one was not voided: then nobody knows
    what was trained on.
    """
    last = last_position(run)
    for position in range(last, 0, -1):
        try:
            manifest = read_step(run, position)
        except CorruptRecord:
            if read_void(run, position) is None:
                raise
            continue
        return None if manifest is None else msgspec.structs.replace(manifest, position=last)
    return None
