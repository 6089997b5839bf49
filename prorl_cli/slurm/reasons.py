"""Why a job waits or ended, in words, and what to do about it. Pure.

Called by `prorl explain` and `prorl status`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prorl_cli.errors import Unfinished
from prorl_cli.slurm.state import UNKNOWN, JobState

NOT_OURS = "nothing: it starts by itself"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What Slurm means, and what a person can do."""

    what: str
    do: str


PENDING: tuple[tuple[str, str, str], ...] = (
    (r"None|", "the scheduler has not looked at it yet", "wait a minute"),
    (r"Priority", "other jobs are ahead of it in the queue", NOT_OURS),
    (r"Resources", "its nodes are busy; all components must be free at once", NOT_OURS + ", or ask for fewer nodes"),
    (r"BeginTime", "it waits for its begin time; after a requeue that is about two minutes", "wait"),
    (r"Dependency", "it goes on when the job before it ends", NOT_OURS),
    (r"DependencyNeverSatisfied", "the job it waits for ended in a way that can never start it",
     "`scancel` it, then `prorl resume` the run"),
    (r"JobHeldUser", "you hold it", "`scontrol release JOBID`"),
    (r"JobHeldAdmin", "an administrator holds it", "ask your site"),
    (r"PartitionTimeLimit", "it asks for more time than its partition allows: it will never start",
     "`scancel` it and lower `cluster.time`, or choose another partition"),
    (r"PartitionNodeLimit", "it asks for more nodes than its partition allows: it will never start",
     "lower `cluster.<role>.nodes` or choose another partition"),
    (r"PartitionConfig", "it asks for what its partition does not allow (time, nodes, memory): it will never start",
     "`scancel` it and compare with `scontrol show partition`"),
    (r"PartitionDown|PartitionInactive", "its partition is closed", "wait, or choose another partition"),
    (r"ReqNodeNotAvail.*", "nodes it needs are down, drained or reserved for maintenance",
     "lower `cluster.time` so that it ends before the maintenance, or wait; `sinfo -R` names the nodes"),
    (r"NodeDown|NodesDown", "a node it needs is down", "wait, or choose another partition"),
    (r"BadConstraints", "no node can ever satisfy it", "correct `cluster.<role>.constraint`, `gpus` or `memory`"),
    (r"Reservation|ReservationDeleted|InvalidReservation", "its reservation has not begun, or is gone",
     "`scontrol show reservation`"),
    (r"InvalidAccount", "its account is not valid any more", "correct `cluster.account`"),
    (r"InvalidQOS|QOSNotAllowed", "its QOS does not exist or is not allowed here", "correct `cluster.qos`"),
    (r"AccountNotAllowed", "its account may not use this partition", "correct `cluster.account` or the partition"),
    (r"AssocGrp\w*|AssocMax\w*|Association\w+Limit|AssocationResourceLimit",
     "your account's limit is used up", "wait for the account's other jobs, or ask for less; `sacctmgr show assoc`"),
    (r"QOSGrp\w*|QOSMax\w*|QOSMin\w*|QOSUsageThreshold|QOSJobLimit|QOSResourceLimit|QOSTimeLimit",
     "a limit of its QOS is used up", "wait for your other jobs, ask for less, or use another `cluster.qos`"),
    (r"MaxCpuPerAccount|Max\w+PerAccount", "a limit per account is used up", "wait for the account's other jobs"),
    (r"Licenses", "a license is not free", NOT_OURS),
    (r"JobArrayTaskLimit", "the array's own limit", NOT_OURS),
    (r"Cleaning", "its last attempt is still being cleaned up", "wait"),
    (r"Prolog|BurstBuffer\w*", "its nodes are being prepared", "wait"),
    (r"FrontEndDown|SystemFailure", "Slurm has a failure of its own", "ask your site"),
    (r"JobLaunchFailure|launch failed requeued held", "its last start failed, and Slurm holds it",
     "see the node's log with your site, then `scontrol release JOBID`"),
    (r"MaxRequeue|RequeueHold|requeued held", "it was requeued too often and is held", "`scontrol release JOBID`"),
    (r"NonZeroExitCode", "its last attempt failed and it is held",
     "read the run's logs, then `scontrol release JOBID`"),
    (r"DeadLine", "it cannot end before its deadline", "`scancel` it and ask for less time"),
)  # fmt: skip

ENDS: dict[str, tuple[str, str]] = {
    "COMPLETED": ("it ended by itself, without an error", "nothing"),
    "CANCELLED": ("somebody cancelled it", "`prorl resume RUN` goes on"),
    "TIMEOUT": ("it reached its time limit", "`prorl resume RUN` goes on; `cluster.chain` does so by itself"),
    "NODE_FAIL": ("a node died, and with it every component", "`prorl resume RUN` goes on"),
    "PREEMPTED": ("a job of higher priority took its nodes", "`prorl resume RUN` goes on"),
    "BOOT_FAIL": ("a node did not boot", "`prorl resume RUN` goes on; tell your site"),
    "DEADLINE": ("it reached its deadline", "`prorl resume RUN` goes on"),
    "OUT_OF_MEMORY": ("a node ran out of the memory that was asked for",
                      "raise `cluster.<role>.memory`, or ask less of the role, then `prorl resume RUN`"),
    "LAUNCH_FAILED": ("it could not be started on its nodes", "tell your site"),
    "RECONFIG_FAIL": ("its nodes could not be set up", "tell your site"),
    "REVOKED": ("another cluster of the federation runs it", "ask that cluster"),
    "FAILED": ("it failed", "read the last words below, mend the cause, then `prorl resume RUN`"),
}  # fmt: skip

NO_LAUNCH = Explanation(
    "it died before its first line, without a log: its output folder was not writable on the first node, or its "
    "working folder or its user is unknown there",
    "check that the first node sees the run directory and may write it, then `prorl resume RUN`",
)

UNFINISHED = f"{Unfinished.exit_code}:0"
"""Slurm's spelling of the exit code of a job that drained."""

ACTIVE: dict[str, str] = {
    "RUNNING": "it runs",
    "COMPLETING": "it has ended; its nodes are being cleaned up",
    "CONFIGURING": "its nodes are being made ready",
    "SUSPENDED": "it is suspended: somebody, or a job of higher priority, stopped it for a while",
    "STOPPED": "it was stopped by a signal and keeps its nodes",
    "REQUEUED": "it goes back into the queue",
    "REQUEUE_HOLD": "it was requeued and is held: `scontrol release JOBID`",
    "SPECIAL_EXIT": "it was requeued with a special exit and is held: `scontrol release JOBID`",
    "RESIZING": "its size is changing",
    "SIGNALING": "it is being sent a signal",
    "STAGE_OUT": "its files are being copied out",
}


def explain(state: JobState) -> Explanation:
    """One job's state in words."""
    if state.state == "PENDING":
        return explain_pending(state.reason)
    if state.state == UNKNOWN:
        return Explanation(
            f"Slurm does not know it ({state.reason}), and the run did not record its end: it may have been killed",
            "`prorl status RUN` shows what it left; `prorl resume RUN` goes on",
        )
    if state.state in ENDS:
        return _explain_end(state)
    return Explanation(ACTIVE.get(state.state, f"Slurm says {state.state}"), "nothing")


def explain_pending(reason: str) -> Explanation:
    """A pending reason in words; one that is not known is quoted."""
    for pattern, what, do in PENDING:
        if re.fullmatch(pattern, reason):
            return Explanation(what, do)
    return Explanation(f"Slurm says: {reason}", "`man squeue`, JOB REASON CODES, says what that means")


def _explain_end(state: JobState) -> Explanation:
    if state.exit_code == "0:53" or "JobLaunchFailure" in state.reason:
        return NO_LAUNCH
    if state.exit_code == UNFINISHED or state.reason.startswith("stopped:"):
        return Explanation(f"it stopped before the run's last step{_own_words(state)}", "`prorl resume RUN` goes on")
    what, do = ENDS[state.state]
    if state.state == "FAILED" and state.exit_code not in ("", "0:0"):
        what += f" with {exit_words(state.exit_code)}"
    if "component" in state.reason:
        what += f" ({state.reason})"
    return Explanation(what + _own_words(state), do)


def _own_words(state: JobState) -> str:
    return f": {state.reason}" if state.reason and state.source == "record" else ""


def exit_words(text: str) -> str:
    """Slurm's `code:signal` in words."""
    code, _, number = text.partition(":")
    return f"signal {number}" if number not in ("", "0") else f"exit code {code}"
