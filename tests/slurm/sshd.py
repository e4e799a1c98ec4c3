"""A real OpenSSH server for the tests: on loopback, in a directory of its own, with keys of its own, ended by its pids.

It lets in one ordinary user, `hpc`, with one key. Debian's server is used where it is (`apt-get install
openssh-server`); where there is none, or where the tests do not run as root, those that need it are skipped with that
reason. The faults are those of a cluster's login node: it hangs, it drops a connection, it is set up anew.
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dispatch_core.adapters.slurm.cluster import SshHost

PROGRAM = Path("/usr/sbin/sshd")
USER = "hpc"
START_SECONDS = 30


@dataclass
class Sshd:
    """A server, and what its one user needs to get in."""

    folder: Path
    port: int
    shell: str | None = None
    """The login shell that reads the command; None: the user's own."""
    max_sessions: int = 10
    child: subprocess.Popen[bytes] | None = None
    earlier: set[int] = field(default_factory=set)
    """What it started and what may outlive it."""

    @property
    def key_file(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def host(self, **changes: object) -> SshHost:
        known = {"key_file": str(self.key_file), "known_hosts": str(self.known_hosts), "user": USER}
        return SshHost(**{"host": "127.0.0.1", "port": self.port, **known, **changes})  # type: ignore[arg-type]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def logins(self) -> int:
        return self.log().count("Accepted publickey")

    def start(self) -> None:
        shell = [f'ForceCommand exec {self.shell} -c "$SSH_ORIGINAL_COMMAND"'] if self.shell else []
        lines = [
            *(f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder}/host_key", "PidFile none"),
            *(f"AuthorizedKeysFile {self.folder}/authorized_keys", "StrictModes no", "UsePAM yes", "UseDNS no"),
            *("PasswordAuthentication no", "KbdInteractiveAuthentication no", f"AllowUsers {USER}"),
            *(f"MaxSessions {self.max_sessions}", "MaxStartups 100", *shell),
        ]
        (self.folder / "config").write_text("".join(f"{line}\n" for line in lines))
        command = ["setpriv", "--pdeathsig", "TERM", PROGRAM, "-D", "-e", "-f", self.folder / "config"]
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while not self._listens():
            if time.monotonic() > until or self.child.poll() is not None:
                raise RuntimeError(f"sshd did not start:\n{self.log()}")
            time.sleep(0.02)

    def connections(self) -> list[int]:
        """The pids that serve a connection: for each the one that stays root, and below it the user's."""
        assert self.child is not None
        return descendants(self.child.pid)

    def freeze(self) -> list[int]:
        """Stop what serves the connections, as a hung host would; the server itself takes new ones."""
        self.earlier.update(pids := self.connections())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids

    def thaw(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def drop(self) -> None:
        """End every connection with -9, and what runs on it; first the oldest, as a server tells of a child's end."""
        for pid in sorted({*self.connections(), *self.earlier}):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.earlier.clear()
        until = time.monotonic() + START_SECONDS
        while self.connections() and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        if self.child is not None:
            self.drop()
            self.child.kill()
            self.child.wait()
            self.child = None
            for pid in self._left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def change_host_key(self, kind: str = "ed25519") -> None:
        """Set it up anew: the same place, with another key."""
        self.stop()
        make_key(self.folder / "host_key", kind)
        self.start()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _left(self) -> list[int]:
        """What scripts have left running: it has this server's port in its environment."""
        mark, found = re.compile(rb"SSH_CONNECTION=127\.0\.0\.1 \d+ 127\.0\.0\.1 %d\0" % self.port), []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.search((folder / "environ").read_bytes()):
                    found.append(int(folder.name))
        return found

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    path.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "a test", "-f", path], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def missing() -> str | None:
    """Why there can be no server here."""
    if not PROGRAM.exists():
        return "OpenSSH's server is not installed: apt-get install openssh-server"
    if os.geteuid() != 0:
        return "only root can start an SSH server that lets another user in"
    return None


@contextmanager
def running() -> Iterator[Sshd]:
    """A server that answers. Skips the test where there can be none."""
    if reason := missing():
        pytest.skip(reason)
    try:
        pwd.getpwnam(USER)
    except KeyError:
        # Another test process may make the user at the same moment.
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", USER], check=False, capture_output=True)
        pwd.getpwnam(USER)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without it
    folder = Path(tempfile.mkdtemp(prefix="dispatch-sshd-"))
    folder.chmod(0o755)  # sshd reads authorized_keys as the user
    server = Sshd(folder, free_port())
    try:
        make_key(folder / "host_key")
        make_key(folder / "key")
        (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
        kind, key = (folder / "host_key.pub").read_text().split()[:2]
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    """A server for one test."""
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def whole_sshd() -> Iterator[Sshd]:
    """A server for a file whose tests leave it alone."""
    with running() as server:
        yield server
