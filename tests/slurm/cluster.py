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
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests import mariadb
from tests.slurm import keeper
from tests.slurm.configuration import CGROUP_CONF, Options, slurm_conf, slurmdbd_conf

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "munged", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd")
MEMORY = Path("/sys/fs/cgroup/memory")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USERS = ("hpc", "other")
START_SECONDS = 60.0
LIVE = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "SPECIAL_EXIT", "REQUEUED"}


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


def read(line: str) -> Job:
    *front, eligible, name, comment = line.split("|", len(COLUMNS) - 1)
    id, user, state, reason, priority, partition, nodes, restarts, code = front
    place = (int(priority), partition, nodes, int(restarts), int(code))
    return Job(id, user, state, reason, *place, eligible, name, comment.removesuffix("|"))


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
        """The pids of its slurmstepd, one for each step that runs."""
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
        """What happens when its power fails: slurmd, its steps, and all that runs for jobs on it, end with -9."""
        self.kill()
        steps = self.steps()
        below = {pid for step in steps for pid in (step, *keeper.descendants(step))}
        self.cluster.end([pid for pid in self.cluster.strays() if pid in below or self.has_started(pid)])

    def has_started(self, pid: int) -> bool:
        try:
            return f"SLURMD_NODENAME={self.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


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
        # The kernel's groups have the nodes' names, and are the whole machine's.
        prefix = f"m{self.ports[0]}n" if self.options.memory_limits else "n"
        self.names = [f"{prefix}{number + 1}" for number in range(self.options.nodes)]
        groups = [str(MEMORY / f"slurm_{name}") for name in self.names] if self.options.memory_limits else []
        self.keeper = subprocess.Popen(
            [sys.executable, "-S", "-E", keeper.__file__, str(self.folder), *groups],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.keeper_pid = self.keeper.pid
        munge = self.folder / "munge"
        files = [f"--{what}-file={munge}/{what}" for what in ("key", "pid", "log", "seed")]
        self.munge = Daemon(self, "munged", ["munged", "-F", f"--socket={munge}/socket", *files])
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
        self.conf.write_text(slurm_conf(self.options, self.folder, self.names, self.ports))
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)

    def start_accounting(self) -> None:
        program = mariadb.program()
        assert program is not None
        assert self.accounting is not None
        server = self.held.enter_context(mariadb.running(program))
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(slurmdbd_conf(self.folder, self.ports[1], (server.host, server.port, mariadb.USER)))
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
        env, who = self.env, pwd.getpwnam(user or "root")
        if user is not None:
            env = self.env | {"USER": user, "LOGNAME": user, "HOME": who.pw_dir}
        done = subprocess.run(
            argv,
            env=env,
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=timeout,
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=os.getgrouplist(who.pw_name, who.pw_gid),
        )
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
        return [read(line) for line in shown.stdout.splitlines()]

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
        """Until no job lives; one that is requeued meanwhile is cancelled again."""

        def none_lives() -> bool:
            if live := [job.id for job in self.leftovers() if job.state != "COMPLETING"]:
                self.command("scancel", *live)
            return not self.leftovers()

        self.wait_until(none_lives, "the queue to be empty")

    def tidy(self) -> None:
        """After a test: every daemon runs and answers, no job lives, nothing of one runs, every node is idle."""
        for daemon in self.daemons():
            daemon.go_on()
            daemon.start()
        self.wait_until(lambda: self.command("scontrol", "ping").returncode == 0, "the controller")
        self.cancel_all()
        with suppress(TimeoutError):
            self.wait_until(lambda: not self.strays(), "steps to end", 1.0)
        self.end(self.strays())
        self.wait_until(self.all_idle, "every node to be idle")

    def all_idle(self) -> bool:
        states = self.node_states()
        for name, state in states.items():
            if state.startswith(("down", "drain")):
                self.command("scontrol", "update", f"NodeName={name}", "State=resume")
        return len(states) == len(self.nodes) and set(states.values()) == {"idle"}

    def end(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: not set(pids) & set(self.pids()), f"{pids} to end")

    def strays(self) -> list[int]:
        """The pids of what runs for jobs: their steps and programs, also those that have parted from their steps."""
        daemons = {daemon.pid for daemon in self.daemons() if daemon.alive}
        theirs = {below for pid in daemons for below in keeper.descendants(pid)}
        return [pid for pid in keeper.descendants(self.keeper_pid) if pid not in daemons | theirs]

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


def why_not(options: Options | None = None) -> str | None:
    """Why no such cluster can be started here."""
    options = options or Options()
    accounting = options.accounting
    wanted = [*PROGRAMS, *(ACCOUNTING_PROGRAMS if accounting else ())]
    if missing := [name for name in wanted if shutil.which(name, path=PATH) is None]:
        packages = "slurmctld slurmd slurm-client munge" + " slurmdbd mariadb-server-core" * accounting
        return f"Slurm is not installed ({', '.join(missing)} missing): apt-get install {packages}"
    if os.geteuid() != 0:
        return "a Slurm cluster runs jobs as several users, and so is started by root only"
    if options.memory_limits and not os.access(MEMORY / "tasks", os.W_OK):
        return f"this machine has no memory cgroup of version 1 at {MEMORY}"
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
