"""A Slurm cluster for the tests: a controller and several nodes on this machine, on ports and in a folder of its own.

Debian's programs are used where they are. Tests that need them are skipped, with the reason, where they are missing or
where this is not root. A keeper (`keeper.py`) starts every daemon and ends it, with all that came of it, by pid; what
was not started here is never touched. Root and the users `hpc` and `other` may submit.
"""

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests import mariadb
from tests.slurm import keeper

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "munged", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USERS = ("hpc", "other")
START_SECONDS = 60.0
LIVE = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SPECIAL_EXIT", "REQUEUED"}


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
    extra: tuple[str, ...] = ()
    """More lines of slurm.conf."""


class Job(NamedTuple):
    """One line of the queue."""

    id: str
    user: str
    state: str
    reason: str
    priority: int
    partition: str
    nodes: str
    restarts: int
    exit: int
    """As wait() has it: the exit code times 256, or the signal."""
    eligible: str
    name: str
    comment: str

    @property
    def live(self) -> bool:
        return self.state in LIVE


COLUMNS = (
    *("JobID", "UserName", "State", "Reason", "PriorityLong", "Partition", "NodeList", "RestartCnt", "exit_code"),
    *("EligibleTime", "Name", "Comment"),
)


@dataclass
class Daemon:
    """One program of a cluster; a number is a pid of its own only while it is the keeper's child."""

    cluster: "Cluster"
    name: str
    argv: Sequence[str | Path]
    pid: int = 0

    @property
    def alive(self) -> bool:
        try:
            state, parent = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            return False
        return state != "Z" and int(parent) == self.cluster.keeper_pid

    def start(self) -> None:
        """Start it, unless it runs; whether it answers is for `wait_until_up`."""
        if not self.alive:
            self.pid = self.cluster.keep(self.name, self.argv)

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)

    def stop(self) -> None:
        """Leave it silent, its port open: whoever calls waits."""
        self.send(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it with -9. A node's steps and jobs live on."""
        self.send(signal.SIGKILL)
        self.cluster.wait_until(lambda: not self.alive, f"{self.name} to end")


@dataclass
class Node(Daemon):
    def steps(self) -> list[int]:
        """The pids of its slurmstepd, one for each step that runs, and some more."""
        return [pid for pid in keeper.descendants(self.cluster.keeper_pid) if self.is_step(pid)]

    def is_step(self, pid: int) -> bool:
        """Its command says which job it serves, not which node; the log that it writes does."""
        place, log = Path(f"/proc/{pid}"), self.cluster.folder / "log" / f"{self.name}.log"
        try:
            named = (place / "comm").read_text().strip() == "slurmstepd"
            return named and any(file.readlink() == log for file in (place / "fd").iterdir())
        except OSError:
            return False

    def kill_all(self) -> None:
        """What a node does when its power fails: slurmd, its steps, and all that they have started, with -9."""
        roots = self.steps()
        self.kill()
        for pid in [below for root in roots for below in (root, *keeper.descendants(root))]:
            if pid in keeper.descendants(self.cluster.keeper_pid):
                os.kill(pid, signal.SIGKILL)


@dataclass
class Cluster:
    options: Options
    folder: Path
    held: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.conf = self.folder / "slurm.conf"
        self.work = self.folder / "work"
        self.env = {"PATH": PATH, "SLURM_CONF": str(self.conf), "LANG": "C.UTF-8"}
        self.ports = [self.reserve_port() for _ in range(self.options.nodes + 2)]
        self.names = [f"n{number + 1}" for number in range(self.options.nodes)]
        command = [sys.executable, "-S", "-E", keeper.__file__, self.folder]
        self.keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        self.keeper_pid = self.keeper.pid
        socket_, munge = self.folder / "munge" / "socket", self.folder / "munge"
        self.munge = Daemon(
            self,
            "munged",
            [
                *("munged", "-F", f"--key-file={munge}/key", f"--socket={socket_}", f"--pid-file={munge}/pid"),
                *(f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
            ],
        )
        self.controller = Daemon(self, "slurmctld", ["slurmctld", "-D"])
        self.nodes = {name: Node(self, name, ["slurmd", "-D", "-N", name]) for name in self.names}
        self.accounting = Daemon(self, "slurmdbd", ["slurmdbd", "-D"]) if self.options.accounting else None

    def reserve_port(self) -> int:
        """A port that nobody else is given while this cluster lives: bound here, and only Slurm shares it."""
        held = self.held.enter_context(socket.socket())
        held.bind(("127.0.0.1", 0))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return int(held.getsockname()[1])

    def keep(self, name: str, argv: Sequence[str | Path]) -> int:
        order = {"argv": [str(word) for word in argv], "env": self.env, "cwd": str(self.folder)}
        assert self.keeper.stdin is not None
        assert self.keeper.stdout is not None
        self.keeper.stdin.write(json.dumps(order | {"log": str(self.folder / "log" / f"{name}.out")}) + "\n")
        self.keeper.stdin.flush()
        return int(self.keeper.stdout.readline())

    def write(self) -> None:
        """Its folder, and what its daemons read. Their paths must be short, since sockets are among them."""
        self.folder.chmod(0o755)
        for name in ("log", "munge", "state", "run", "spool", "work", *(f"spool/{name}" for name in self.names)):
            (self.folder / name).mkdir(mode=0o755)
        for name in ("log", "state", "run"):
            shutil.chown(self.folder / name, "slurm", "slurm")
        self.work.chmod(0o1777)
        key = self.folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        self.conf.write_text("\n".join(self.lines()) + "\n")

    def lines(self) -> list[str]:
        options, folder, socket_ = self.options, self.folder, self.folder / "munge" / "socket"
        controller, accounting, *nodes = self.ports
        auth = f"socket={socket_},ttl={options.credential_ttl},cred_expire={options.cred_expire}"
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={socket.gethostname().partition('.')[0]}(127.0.0.1)",
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
            "TaskPlugin=task/none",
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
                f"AccountingStoragePass={socket_}",
                "AccountingStoreFlags=job_comment",
            ]
        else:
            lines.append("AccountingStorageType=accounting_storage/none")
        size = f"CPUs={options.cpus} RealMemory={options.memory}"
        for name, port in zip(self.names, nodes, strict=True):
            lines.append(f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} {size}")
        common = "Nodes=ALL MaxTime=INFINITE State=UP"
        lines.append(f"PartitionName=main {common} Default=YES PriorityTier=1 PreemptMode=REQUEUE")
        lines.append(f"PartitionName=urgent {common} PriorityTier=10 PreemptMode=OFF")
        return [*lines, *options.extra]

    def start_accounting(self) -> None:
        program = mariadb.program()
        assert program is not None
        assert self.accounting is not None
        server = self.held.enter_context(mariadb.running(program))
        conf = self.folder / "slurmdbd.conf"
        lines = [
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/munge/socket",
            f"DbdHost={socket.gethostname().partition('.')[0]}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={self.ports[1]}",
            "SlurmUser=slurm",
            f"PidFile={self.folder}/run/slurmdbd.pid",
            f"LogFile={self.folder}/log/slurmdbd.log",
            "StorageType=accounting_storage/mysql",
            f"StorageHost={server.host}",
            f"StoragePort={server.port}",
            f"StorageUser={mariadb.USER}",
            "StorageLoc=slurm",
        ]
        conf.write_text("\n".join(lines) + "\n")
        shutil.chown(conf, "slurm", "slurm")
        conf.chmod(0o600)
        self.accounting.start()
        self.wait_until(lambda: self.command("sacctmgr", "-nP", "show", "cluster").returncode == 0, "slurmdbd")
        self.command("sacctmgr", "-iQ", "add", "cluster", "test", check=True)

    def start(self) -> None:
        self.write()
        self.munge.start()
        asking = ("munge", "-n", "-o", "/dev/null", "-S", self.folder / "munge" / "socket")
        self.wait_until(lambda: self.command(*asking).returncode == 0, "munged")
        if self.options.accounting:
            self.start_accounting()
        self.controller.start()
        for node in self.nodes.values():
            node.start()
        self.wait_until_up()

    def close(self) -> None:
        """End all of it; the keeper removes the folder."""
        try:
            self.keeper.communicate(timeout=START_SECONDS)
        finally:
            self.held.close()

    def command(
        self, *argv: str | Path, user: str | None = None, check: bool = False, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root or as a user, in a folder that all may write to. It waits; a loop asks a thread."""
        env, groups = self.env, None
        if user is not None:
            entry = pwd.getpwnam(user)
            env = self.env | {"USER": user, "LOGNAME": user, "HOME": entry.pw_dir}
            groups = os.getgrouplist(user, entry.pw_gid)
        who = {} if user is None else {"user": user, "group": groups[0], "extra_groups": groups}
        done = subprocess.run(argv, env=env, cwd=self.work, capture_output=True, text=True, timeout=timeout, **who)
        if check and done.returncode != 0:
            raise RuntimeError(f"{argv} ended with {done.returncode}: {done.stderr}\n{self.tails()}")
        return done

    def wait_until(self, holds: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}\n{self.tails()}")
            time.sleep(0.05)

    def wait_until_up(self) -> None:
        """Until the controller answers, and every node whose slurmd runs may be given jobs."""
        names = {name for name, node in self.nodes.items() if node.alive}
        self.wait_until(lambda: self.controller.alive and names <= set(self.usable()), "the cluster")

    def usable(self) -> list[str]:
        states = self.node_states()
        return [name for name, state in states.items() if state in {"idle", "mixed", "allocated", "completing"}]

    def node_states(self) -> dict[str, str]:
        """Each node's state as sinfo writes it, marks such as * (it does not answer) included; empty if unknown."""
        shown = self.command("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T")
        return dict(line.split() for line in shown.stdout.splitlines()) if shown.returncode == 0 else {}

    def set_node(self, name: str, state: str) -> None:
        self.command("scontrol", "update", f"NodeName={name}", f"State={state}", "Reason=test", check=True)

    def jobs(self, *, user: str | None = None) -> list[Job]:
        """The whole queue, those that have ended and are not purged yet included."""
        columns = ",".join(f"{name}:|" for name in COLUMNS)
        shown = self.command("squeue", "-h", "-a", "-r", "-t", "all", "-O", columns, user=user, check=True)
        rows = (line.split("|", len(COLUMNS) - 1) for line in shown.stdout.splitlines())
        return [
            Job(id, who, state, reason, int(priority), part, nodes, int(restarts), int(raw), *rest[:2], rest[2][:-1])
            for id, who, state, reason, priority, part, nodes, restarts, raw, *rest in rows
        ]

    def job(self, id: str) -> Job:
        return next(job for job in self.jobs() if job.id == id)

    def saved(self, text: str) -> bool:
        """Whether a text, such as a job's name, is in the queue that the controller has written to disk.

        It writes the whole queue some seconds after a change; what is not in it yet is lost by kill -9.
        """
        state = self.folder / "state" / "job_state"
        return state.exists() and text.encode() in state.read_bytes()

    def leftovers(self) -> list[Job]:
        return [job for job in self.jobs() if job.live]

    def cancel_all(self) -> None:
        """Until nothing lives; what ends at the same moment as it is cancelled may come back once."""

        def none_lives() -> bool:
            if live := [job.id for job in self.leftovers() if job.state != "COMPLETING"]:
                self.command("scancel", *live)
            return not self.leftovers()

        self.wait_until(none_lives, "the queue to be empty")

    def tidy(self) -> None:
        """After a test: every daemon runs and answers, no job lives, every node is idle."""
        for daemon in self.daemons():
            daemon.go_on()
            daemon.start()
        self.wait_until(lambda: self.command("scontrol", "ping").returncode == 0, "the controller")
        self.cancel_all()
        for name, state in self.node_states().items():
            if state != "idle":
                self.set_node(name, "resume" if state.startswith(("down", "drain")) else "undrain")
        self.wait_until_up()

    def daemons(self) -> list[Daemon]:
        return [self.munge, *([self.accounting] if self.accounting else []), self.controller, *self.nodes.values()]

    def pids(self) -> list[int]:
        """All that runs on account of this cluster, but its database: the keeper and what is below it."""
        return [self.keeper_pid, *keeper.descendants(self.keeper_pid)]

    def tails(self, lines: int = 15) -> str:
        """The ends of the logs; what a daemon that has none wrote instead."""
        shown = []
        for path in sorted((self.folder / "log").glob("*")):
            if path.suffix == ".out" and path.with_suffix(".log").exists():
                continue
            if text := path.read_text(errors="replace").splitlines()[-lines:]:
                shown += [f"== {path.name}", *text]
        return "\n".join(shown)


def why_not(*, accounting: bool = False) -> str | None:
    """Why no cluster can be started here."""
    wanted = [*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ())]
    if missing := [name for name in wanted if shutil.which(name, path=PATH) is None]:
        packages = "slurmctld slurmd slurm-client munge" + " slurmdbd mariadb-server-core" * accounting
        return f"Slurm is not installed ({', '.join(missing)} missing): apt-get install {packages}"
    if os.geteuid() != 0:
        return "a Slurm cluster runs jobs as several users, and so is started by root only"
    return None


def make_users() -> None:
    """The users that submit; useradd has a lock, and another test's may hold it."""
    for name in USERS:
        for _ in range(50):
            if name in {entry.pw_name for entry in pwd.getpwall()}:
                break
            subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], capture_output=True, env={"PATH": PATH})
            time.sleep(0.1)


@contextmanager
def running(options: Options | None = None) -> Iterator[Cluster]:
    """A cluster that answers and whose nodes are idle; after it nothing is left, whatever was done to it."""
    make_users()
    cluster = Cluster(options or Options(), Path(tempfile.mkdtemp(prefix="ds-", dir="/tmp")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
