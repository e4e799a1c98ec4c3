"""What a test may choose of a Slurm cluster, and the files that its daemons read."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Options(NamedTuple):
    """What differs between clusters."""

    nodes: int = 3
    """Named n1, n2, ..."""
    cpus: int = 4
    """Of each node, whatever this machine has."""
    memory: int = 2000
    """MiB of each node, whatever this machine has; a job that asks for none gets 100 for each of its CPUs."""
    accounting: bool = False
    """With slurmdbd, and MariaDB behind it."""
    min_job_age: int = 60
    """Seconds that the queue still shows a job which has ended."""
    message_timeout: int = 10
    """Seconds after which a command gives up on a controller that does not answer."""
    credential_ttl: int = 20
    """Seconds within which a call must be read; a later one is refused, and does nothing."""
    cred_expire: int = 5
    """A requeued job waits this many seconds, and one more."""
    kill_wait: int = 2
    """Seconds between TERM and KILL of a job that is cancelled."""
    node_timeout: int = 60
    """Seconds after which a silent node is down."""
    memory_limits: bool = False
    """The kernel ends a job that takes more memory than it asked for: OUT_OF_MEMORY. Needs the memory cgroup, v1."""
    extra: tuple[str, ...] = ()
    """More lines of slurm.conf."""


def slurm_conf(options: Options, folder: Path, names: Sequence[str], ports: Sequence[int]) -> str:
    """Of the ports, the first is the controller's, the second slurmdbd's, the others the nodes'."""
    controller, accounting, *own = ports
    auth = f"socket={folder}/munge/socket,ttl={options.credential_ttl},cred_expire={options.cred_expire}"
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host()}(127.0.0.1)",
        f"SlurmctldPort={controller}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        f"AuthInfo={auth}",
        "CredType=cred/munge",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/run/slurmctld.pid",
        f"SlurmdPidFile={folder}/run/%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/%n.log",
        "DebugFlags=NO_CONF_HASH",
        "MpiDefault=none",
        "SwitchType=switch/none",
        "ProctrackType=proctrack/linuxproc",
        f"TaskPlugin=task/{'cgroup' if options.memory_limits else 'none'}",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=1",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "DefMemPerCPU=100",
        "SlurmdParameters=config_overrides",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,default_queue_depth=1000",
        "PriorityType=priority/basic",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        "ReturnToService=2",
        "MailProg=/bin/true",
        f"MinJobAge={options.min_job_age}",
        f"KillWait={options.kill_wait}",
        f"MessageTimeout={options.message_timeout}",
        f"SlurmdTimeout={options.node_timeout}",
        "SlurmctldTimeout=30",
        "MaxJobCount=20000",
    ]
    if options.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={accounting}",
            f"AccountingStoragePass={folder}/munge/socket",
            "AccountingStoreFlags=job_comment",
        ]
    else:
        lines.append("AccountingStorageType=accounting_storage/none")
    size = f"CPUs={options.cpus} RealMemory={options.memory}"
    for name, port in zip(names, own, strict=True):
        lines.append(f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} {size}")
    common = "Nodes=ALL MaxTime=INFINITE State=UP"
    lines.append(f"PartitionName=main {common} Default=YES PriorityTier=1 PreemptMode=REQUEUE")
    lines.append(f"PartitionName=urgent {common} PriorityTier=10 PreemptMode=OFF")
    return "\n".join([*lines, *options.extra, ""])


def slurmdbd_conf(folder: Path, port: int, database: tuple[str, int, str]) -> str:
    """The database is a host, a port and a user without a password."""
    address, database_port, user = database
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"DbdHost={host()}",
        "DbdAddr=127.0.0.1",
        f"DbdPort={port}",
        "SlurmUser=slurm",
        f"PidFile={folder}/run/slurmdbd.pid",
        f"LogFile={folder}/log/slurmdbd.log",
        "StorageType=accounting_storage/mysql",
        f"StorageHost={address}",
        f"StoragePort={database_port}",
        f"StorageUser={user}",
        "StorageLoc=slurm",
    ]
    return "\n".join([*lines, ""])


CGROUP_CONF = """CgroupPlugin=cgroup/v1
ConstrainRAMSpace=yes
ConstrainSwapSpace=yes
AllowedSwapSpace=0
"""


def host() -> str:
    return socket.gethostname().partition(".")[0]
