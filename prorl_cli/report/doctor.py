"""`doctor`: what this cluster is and allows, each finding with its fix.

Pure but for `examine_cluster`, which asks the cluster. What this node can do is `node`'s, what two nodes see of one
folder `sharing`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from prorl_cli.recipe.units import format_duration
from prorl_cli.report.findings import Finding
from prorl_cli.slurm.commands import NotInstalled, SlurmError
from prorl_cli.slurm.facts import Facts, Partition, gather

CLUSTER = "cluster"

LEAST_JOB_AGE_S = 60
"""A state that Slurm forgets sooner may be missed by whoever looks seldom."""

OLDEST = (20, 2)
"""The first Slurm that spells heterogeneous jobs `hetjob`."""

CRASHED = ((24, 11, 0), (24, 11, 4))
"""From here to before there, submitting a heterogeneous job could end the controller."""


def examine_cluster() -> list[Finding]:
    """The cluster of this machine; one finding when there is none."""
    try:
        return list(cluster_findings(gather()))
    except NotInstalled as error:
        return [Finding(part=CLUSTER, name="slurm", value="none here", verdict="note", fix=str(error))]
    except SlurmError as error:
        return [Finding(part=CLUSTER, name="slurm", value="no answer", verdict="bad", fix=str(error))]


def cluster_findings(facts: Facts) -> Iterator[Finding]:
    """Everything that bears on how prorl runs here."""
    found = facts.settings
    yield _version(found.get("SLURM_VERSION", "unknown"))
    yield from _scheduler(found.get("SchedulerType", ""), found.get("SchedulerParameters", ""))
    enforced = found.get("EnforcePartLimits", "NO")
    yield Finding(
        part=CLUSTER, name="EnforcePartLimits", value=enforced, verdict="note" if enforced == "NO" else "ok",
        fix="" if enforced != "NO" else "Slurm queues what can never start; prorl's own check refuses it first",
    )  # fmt: skip
    yield _job_age(found.get("MinJobAge", ""))
    requeue = found.get("JobRequeue", "1")
    yield Finding(
        part=CLUSTER, name="JobRequeue", value=requeue, verdict="ok" if requeue == "1" else "note",
        fix="" if requeue == "1" else "only jobs that ask for it are requeued: `cluster.requeue: true` does",
    )  # fmt: skip
    yield Finding(part=CLUSTER, name="MpiDefault", value=found.get("MpiDefault", "none"))
    if (plugins := found.get("JobSubmitPlugins", "(null)")) not in ("(null)", ""):
        fix = "this site may change or refuse what is submitted: read its words when it does"
        yield Finding(part=CLUSTER, name="JobSubmitPlugins", value=plugins, verdict="note", fix=fix)
    yield from _accounting(facts)
    yield from (_partition(facts, partition) for partition in facts.partitions)


def _version(text: str) -> Finding:
    numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:3])
    if numbers and numbers < OLDEST:
        fix = "it has no `#SBATCH hetjob`: use `cluster.topology: single`"
        return Finding(part=CLUSTER, name="slurm", value=text, verdict="bad", fix=fix)
    if CRASHED[0] <= numbers < CRASHED[1]:
        fix = "submitting a heterogeneous job may crash its controller: ask for 24.11.4, or use `topology: single`"
        return Finding(part=CLUSTER, name="slurm", value=text, verdict="bad", fix=fix)
    return Finding(part=CLUSTER, name="slurm", value=text)


def _scheduler(kind: str, parameters: str) -> Iterator[Finding]:
    backfill = kind == "sched/backfill"
    yield Finding(
        part=CLUSTER, name="SchedulerType", value=kind, verdict="ok" if backfill else "bad",
        fix="" if backfill else "it never starts heterogeneous jobs: use `cluster.topology: single`",
    )  # fmt: skip
    eager = [word for word in parameters.split(",") if word.startswith("bf_hetjob_")]
    yield Finding(
        part=CLUSTER, name="heterogeneous jobs", value=", ".join(eager) or "scheduled after the rest of the queue",
        verdict="ok" if eager or not backfill else "note",
        fix="" if eager or not backfill else "your site can set SchedulerParameters=bf_hetjob_immediate",
    )  # fmt: skip
    if "disable_hetjob_steps" in parameters:
        yield Finding(part=CLUSTER, name="steps over components", value="forbidden (prorl starts none)")


def _job_age(text: str) -> Finding:
    match = re.match(r"\d+", text)
    short = match is not None and int(match[0]) < LEAST_JOB_AGE_S
    fix = "Slurm forgets ended jobs at once; the run's own record says how they ended" if short else ""
    return Finding(part=CLUSTER, name="MinJobAge", value=text, verdict="note" if short else "ok", fix=fix)


def _accounting(facts: Facts) -> Iterator[Finding]:
    kind = facts.settings.get("AccountingStorageType", "")
    if "slurmdbd" not in kind:
        fix = "ended jobs are told from the run's own record"
        yield Finding(part=CLUSTER, name="accounting", value=kind or "none", verdict="note", fix=fix)
    elif facts.associations is None:
        yield Finding(part=CLUSTER, name="accounts", value="not told", verdict="note", fix="try `sacctmgr show assoc`")
    else:
        accounts = ", ".join(dict.fromkeys(one.account for one in facts.associations))
        yield Finding(part=CLUSTER, name="accounts", value=accounts)


def _partition(facts: Facts, partition: Partition) -> Finding:
    nodes = [node for node in facts.nodes if node.partition == partition.name]
    gpus = sorted({f"{count}×{kind or 'gpu'}" for node in nodes for kind, count in node.gpus})
    longest = "no time limit" if partition.max_time_s is None else f"at most {format_duration(partition.max_time_s)}"
    most = "" if partition.max_nodes is None else f", at most {partition.max_nodes} nodes a job"
    up = sum(node.state not in ("down", "drained", "fail") for node in nodes)
    shape = f"{max((node.cpus for node in nodes), default=0)} cores" + (f", {' or '.join(gpus)}" if gpus else "")
    return Finding(
        part=CLUSTER, name=f"partition {partition.name}" + (" (default)" if partition.default else ""),
        value=f"{up} of {len(nodes)} nodes up, {shape}; {longest}{most}",
        verdict="ok" if partition.state == "UP" and up else "note",
        fix="" if partition.state == "UP" and up else f"it is {partition.state}; `sinfo -R` says why nodes are down",
    )  # fmt: skip
