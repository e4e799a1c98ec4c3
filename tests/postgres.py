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
STOP_SECONDS = 20


@dataclass(frozen=True)
class PostgresServer:
    """A running server that lets its one user in without a password."""

    port: int
    host: str = "127.0.0.1"
    user: str = "dispatch"

    def url(self, database: str, port: int | None = None) -> str:
        return f"postgresql://{self.user}@{self.host}:{port or self.port}/{database}"


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(programs: Path) -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="dispatch-postgres-"))
    try:
        folder.chmod(0o755)
        prefix, data = as_another_user(folder), folder / "data"
        making = [programs / "initdb", "-D", data, "-U", "dispatch", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run([*prefix, *making], check=True, capture_output=True, cwd=folder, timeout=START_SECONDS)
        server = PostgresServer(port=free_port())
        options = {
            "listen_addresses": server.host,
            "port": server.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 200,
        }
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [*prefix, programs / "postgres", "-D", data, *settings], stdout=log, stderr=log, cwd=folder
            )
        try:
            wait_until_ready(programs, server, child, folder / "log")
            yield server
        finally:
            end(child)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(programs: Path, server: PostgresServer, child: subprocess.Popen[bytes], log: Path) -> None:
    asking = [programs / "pg_isready", "-q", "-h", server.host, "-p", str(server.port)]
    until = time.monotonic() + START_SECONDS
    while subprocess.run(asking, check=False).returncode != 0:
        if child.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()}")
        time.sleep(0.1)


def end(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        child.send_signal(signal.SIGQUIT)  # at once: nothing in it is wanted any more
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql-15")
    with running(programs) as server:
        yield server
