"""What the test cluster is: four nodes on this host, the files its daemons read. Pure."""

from dataclasses import dataclass
from pathlib import Path

NODES = ("cpu1", "cpu2", "gpu1", "gpu2")

GPU_TYPE = "h200"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the cluster lives and whose it is."""

    folder: Path
    host: str
    user: str
    ports: tuple[int, ...]
    """One for the controller, then one for each of `NODES`."""

    @property
    def conf(self):
        return self.folder / "slurm.conf"

    @property
    def socket(self):
        return self.folder / "munge/socket"


def slurm_conf(place: Place) -> str:
    """`cred_expire` is also how long a requeued job must wait, two minutes by default."""
    d = place.folder
    return f"""\
ClusterName=test
SlurmctldHost={place.host}(127.0.0.1)
SlurmctldPort={place.ports[0]}
SlurmUser={place.user}
SlurmdUser={place.user}
AuthType=auth/munge
AuthInfo=socket={place.socket},cred_expire=15
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={d}/log/jobs.txt
ReturnToService=2
SlurmctldPidFile={d}/run/slurmctld.pid
SlurmdPidFile={d}/run/slurmd.%n.pid
SlurmdSpoolDir={d}/spool/%n
StateSaveLocation={d}/state
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=2,batch_sched_delay=1,bf_hetjob_immediate
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=30
InactiveLimit=0
MinJobAge=60
SlurmdTimeout=30
{nodes(place)}
PartitionName=cpu Nodes=cpu[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=gpu[1-2] MaxTime=INFINITE State=UP
PartitionName=short Nodes=cpu[1-2] MaxTime=3 State=UP
PartitionName=short-gpu Nodes=gpu[1-2] MaxTime=3 State=UP
PartitionName=all Nodes=cpu[1-2],gpu[1-2] MaxTime=INFINITE State=UP
PartitionName=paid Nodes=cpu[1-2],gpu[1-2] MaxTime=INFINITE AllowAccounts=lab State=UP
"""


def nodes(place: Place) -> str:
    return "\n".join(
        f"NodeName={name} NodeHostname={place.host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=16000 "
        + (f"Gres=gpu:{GPU_TYPE}:2 Feature=fast" if name.startswith("gpu") else "Feature=plain")
        for name, port in zip(NODES, place.ports[1:], strict=True)
    )


def gres_conf(place: Place) -> str:
    """Slurm counts only GPUs with a device of their own: two harmless ones stand in."""
    files = "\n".join(
        f"NodeName=gpu[1-2] Name=gpu Type={GPU_TYPE} File={place.folder}/dev/gpu{number}" for number in (0, 1)
    )
    return f"AutoDetect=off\n{files}\n"


def daemons(place: Place) -> dict[str, list[str]]:
    """Name → argv of every daemon, all in the foreground."""
    munge = place.folder / "munge"
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={munge / name}" for option, name in names.items()]
    conf = str(place.conf)
    return {
        "munged": ["munged", "--foreground", *options],
        "slurmctld": ["slurmctld", "-D", "-c", "-f", conf],
        **{node: ["slurmd", "-D", "-N", node, "-f", conf] for node in NODES},
    }
