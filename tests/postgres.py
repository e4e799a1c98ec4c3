"""A PostgreSQL server for the tests: one a session, on loopback, in a directory of its own, ended with the session.

Debian's binaries are used where they are (`apt-get install postgresql-15`); where there are none, the tests that need
them are skipped with that reason. Nothing is ended but the one server that was started here.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

START_SECONDS = 60


@dataclass
class PostgresServer:
    """A server that lets its one user in without a password."""

    programs: Path
    folder: Path
    durable: bool
    """Whether what it acknowledged outlives it; the tests of what it answers are quicker without."""
    port: int
    host: str = "127.0.0.1"
    user: str = "dispatch"
    child: subprocess.Popen[bytes] | None = None

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://{self.user}@{self.host}:{port or self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers; one that was ended with -9 recovers first."""
        options = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on" if self.durable else "off",
            "recovery_init_sync_method": "syncfs",  # else it opens each of its thousand files when it starts again
            "max_connections": 200,
            "dynamic_shared_memory_type": "mmap",  # in its folder, so that nothing of it stays behind
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [*as_another_user(self.folder), self.programs / "postgres", "-D", self.folder / "data", *settings]
        asking = [self.programs / "pg_isready", "-q", "-h", self.host, "-p", str(self.port)]
        until = time.monotonic() + START_SECONDS
        while subprocess.run(asking, check=False).returncode != 0:
            if time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            if self.child is None or self.child.poll() is not None:
                # Where its last life left children behind, it refuses until they have noticed, so it is asked again.
                with (self.folder / "log").open("ab") as log:
                    self.child = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
            time.sleep(0.1)

    def crash(self) -> None:
        """End it and all that it has started with -9, whatever they are doing."""
        assert self.child is not None
        started = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        self.child.kill()
        for number in started:
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)
        self.child.wait()

    def stop(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.crash()  # nothing in it is wanted any more


def binaries() -> Path | None:
    """The folder that holds initdb and postgres; the newest of Debian's, or what is on PATH."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = debian[-1] if debian else shutil.which("initdb")
    return Path(found).parent if found else None


def as_another_user(folder: Path) -> list[str]:
    """What to put before a command so that it ends with this session, and does not run as root, which it refuses."""
    prefix = ["setpriv", "--pdeathsig", "INT"]
    if os.geteuid() != 0:
        return prefix
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return [*prefix, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def folder_for(kind: str, *, in_memory: bool) -> Path:
    """A new folder, which another user can enter. A durable server syncs each file, which is quick in memory."""
    memory, enough = Path("/dev/shm"), 400_000_000  # noqa: S108 - mkdtemp makes a folder of its own in it
    there = in_memory and memory.is_dir() and shutil.disk_usage(memory).free > enough
    folder = Path(tempfile.mkdtemp(prefix=f"dispatch-{kind}-", dir=memory if there else None))
    folder.chmod(0o755)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(programs: Path, *, durable: bool = False, in_memory: bool = False) -> Iterator[PostgresServer]:
    folder = folder_for("postgres", in_memory=in_memory)
    try:
        prefix, data = as_another_user(folder), folder / "data"
        making = [programs / "initdb", "-D", data, "-U", "dispatch", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run([*prefix, *making], check=True, capture_output=True, cwd=folder, timeout=START_SECONDS)
        server = PostgresServer(programs, folder, durable, port=free_port())
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql-15")
    with running(programs) as server:
        yield server
