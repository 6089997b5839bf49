"""Whatever kills a part of a run on Slurm, or all of it: nothing finished is lost, none trained twice, and the run ends
at the step where it would have ended."""

import os
import signal

from prorl_cli.rundir import RunDir
from prorl_cli.spool.members import read_outcome
from tests.cluster.cluster_run import (
    HETJOB,
    SATELLITES,
    Traces,
    attempt,
    last_words,
    launch,
    resume,
    step,
    submitted,
    wait,
    wait_done,
    wait_steps,
    write_recipe,
)
from tests.cluster.slurm_cluster import TERMINAL
from tests.quick_run import is_process, live_roles, prorl, status
from tests.run_ledger import check_ledger, leftovers

ROLES = ("coordinator", "router", "rollout", "engine", "learner")

ENDLESS = 100000


def test_a_hetjob_ends_at_its_step_through_every_fault_of_processes_nodes_and_slurm(cluster, tmp_path):
    traces = Traces()
    run = launch(tmp_path, write_recipe(tmp_path, HETJOB, steps=ENDLESS))
    wait_steps(run, 2)
    for role in ROLES:
        kill_each(run, role)
        wait_steps(run, 1)
    assert attempt(run) == 1, "a role's death is no reason for a new attempt"
    [job] = submitted(run)
    a_node_goes_down(cluster, run, job)
    cluster.run("scontrol", "requeue", job)
    wait_attempt(run, 3)
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    assert cluster.wait(job, [*TERMINAL, "GONE"], 90)
    assert read_outcome(run, 3).state == "stopped", last_words(run)
    resume(tmp_path)
    wait_attempt(run, 4)
    cluster.run("scancel", submitted(run)[-1])
    cluster.wait(submitted(run)[-1], [*TERMINAL, "GONE"], 90)
    finish(cluster, tmp_path, run)
    assert not traces.left(tmp_path)


def test_the_time_limit_hands_over_to_the_next_job_of_the_chain(cluster, tmp_path):
    traces = Traces()
    limited = HETJOB.replace("time: 30m", "time: 3m\n  chain: 1").replace("partition: cpu", "partition: short")
    limited = limited.replace("partition: gpu", "partition: short-gpu")
    run = launch(tmp_path, write_recipe(tmp_path, limited, steps=ENDLESS))
    wait_steps(run, 1)
    wait_attempt(run, 2)
    assert prorl(tmp_path, "stop", "run").returncode == 0
    assert wait_done(cluster, run) == "stopped"
    finish(cluster, tmp_path, run)
    assert not traces.left(tmp_path)


def test_a_satellite_dies_and_another_joins_while_the_run_goes_on(cluster, tmp_path):
    traces = Traces()
    run = launch(tmp_path, write_recipe(tmp_path, SATELLITES, steps=ENDLESS))
    wait(run, lambda: len(workers(run)) == 2, 300, "two rollout nodes")
    wait_steps(run, 1)
    [coordinator] = live_roles(run)["coordinator"]
    before = workers(run)
    lost = next(node for node in ("cpu1", "cpu2") if node != node_of(cluster, "control", run))
    cluster.kill_node(lost)
    wait_steps(run, 2)
    cluster.start_node(lost)
    wait(run, lambda: len(workers(run)) == 2 and workers(run) != before, 300, "another rollout node")
    wait_steps(run, 2)
    assert attempt(run) == 1 and live_roles(run)["coordinator"][0].incarnation == coordinator.incarnation
    assert prorl(tmp_path, "stop", "run").returncode == 0
    assert wait_done(cluster, run) == "stopped"
    finish(cluster, tmp_path, run)
    assert not traces.left(tmp_path)


def kill_each(run: RunDir, role):
    wait(run, lambda: set(live_roles(run)) == set(ROLES), 300, "every role up")
    for peer in live_roles(run)[role]:
        if is_process(peer.pid, peer.pid_started):
            os.kill(peer.pid, signal.SIGKILL)


def a_node_goes_down(cluster, run, job):
    """A heterogeneous job is one failure domain: Slurm puts all of it back into the queue."""
    cluster.down("cpu2")
    wait(run, lambda: cluster.state(job) == "PENDING", 60, "the requeue")
    cluster.up("cpu2")
    wait_attempt(run, 2)


def wait_attempt(run: RunDir, number, seconds=300):
    """Until attempt `number` has trained a step."""
    wait(run, lambda: attempt(run) == number, seconds, f"attempt {number}")
    wait_steps(run, 1, seconds)


def workers(run: RunDir):
    return {peer.incarnation for peer in live_roles(run).get("rollout", [])}


def node_of(cluster, name, run):
    """The node of the batch script of the run's first job."""
    return cluster.run("squeue", "-h", "-j", submitted(run)[0], "-o", "%B").split()[0]


def finish(cluster, folder, run: RunDir):
    """Go on to a last step a little ahead, and check the whole run."""
    final, last = step(run) + 4, attempt(run) + 1
    resume(folder, "--set", f"learner.steps={final}")
    wait(run, lambda: attempt(run) == last, 300, f"attempt {last}")
    assert wait_done(cluster, run) == "done", last_words(run)
    picture = status(folder, "run")
    assert (picture["state"], picture["step"]) == ("done", final)
    check_ledger(run, final)
    assert not leftovers(run)
