"""A run trains to its end on every shape of job, and leaves nothing on any node."""

import pytest

from prorl_cli.spool.steps import steps
from tests.cluster.cluster_run import HETJOB, SATELLITES, SINGLE, Traces, last_words, launch, wait_done, write_recipe
from tests.quick_run import status
from tests.run_ledger import check_ledger, leftovers

STEPS = 8


@pytest.mark.parametrize("topology", [HETJOB, SATELLITES, SINGLE], ids=["hetjob", "satellites", "single"])
def test_a_run_trains_to_its_end_with_records_of_both_rollout_nodes(cluster, tmp_path, topology):
    traces = Traces()
    run = launch(tmp_path, write_recipe(tmp_path, topology, steps=STEPS))
    assert wait_done(cluster, run) == "done", last_words(run)
    check_ledger(run, STEPS)
    picture = status(tmp_path, "run")
    assert (picture["state"], picture["step"]) == ("done", STEPS)
    assert len({ref.writer for manifest in steps(run) for ref in manifest.records}) == 2
    assert not leftovers(run) and not traces.left(tmp_path)
