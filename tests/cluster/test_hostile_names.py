"""A whole run where every part meets a run directory that a careless script would trip over."""

from tests.cluster.cluster_run import HETJOB, Traces, last_words, launch, wait_done, write_recipe
from tests.run_ledger import check_ledger, leftovers

NAME = 'a run, it\'s "quoted" $HOME `id` %j hetjob\\n'

STEPS = 2


def test_a_run_trains_in_a_directory_of_any_name_under_any_shell(cluster, tmp_path, monkeypatch):
    for name, value in (("SBATCH_PARTITION", "gpu"), ("SQUEUE_FORMAT", "%j"), ("http_proxy", "http://127.0.0.1:9")):
        monkeypatch.setenv(name, value)
    traces = Traces()
    run = launch(tmp_path, write_recipe(tmp_path, HETJOB, steps=STEPS), name=NAME)
    assert wait_done(cluster, run, 600) == "done", last_words(run)
    check_ledger(run, STEPS)
    assert not leftovers(run) and not traces.left(tmp_path)
