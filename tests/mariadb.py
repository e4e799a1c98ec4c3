"""A MariaDB server for the tests: one a session, on loopback, in a directory of its own, ended with the session.

Debian's binaries are used where they are (`apt-get install mariadb-server-core`); where there are none, the tests that
need them are skipped with that reason. Nothing is ended but the one server that was started here.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.postgres import START_SECONDS, as_another_user, folder_for, free_port

SCRIPTS = Path("/usr/share/mysql")
MAKING = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
USER = "dispatch"


@dataclass
class MariadbServer:
    """A server that lets its one user in without a password."""

    program: Path
    folder: Path
    durable: bool
    """Whether what it acknowledged outlives it; the tests of what it answers are quicker without."""
    port: int
    host: str = "127.0.0.1"
    child: subprocess.Popen[bytes] | None = None

    def url(self, database: str, port: int | None = None) -> str:
        return f"mariadb://{USER}@{self.host}:{port or self.port}/{database}"

    def command(self, *options: str) -> list[str | Path]:
        data, scratch = self.folder / "data", self.folder / "tmp"
        places = [f"--datadir={data}", f"--tmpdir={scratch}", f"--socket={scratch}/socket", f"--pid-file={scratch}/pid"]
        speed = ["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", "--skip-name-resolve"]
        if not self.durable:
            speed += ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--sync-frm=0"]
        return [*as_another_user(self.folder), self.program, "--no-defaults", *places, *speed, *options]

    def make(self) -> None:
        """The server's own tables, and the user: what mariadb-install-db does with programs of two more packages."""
        for name in ("data", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
            shutil.chown(self.folder / name, self.folder.stat().st_uid, self.folder.stat().st_gid)
        lines = ["CREATE DATABASE mysql;", "USE mysql;"]
        for script in MAKING:
            lines += [line for line in (SCRIPTS / script).read_text().splitlines() if "@current_hostname" not in line]
        lines += ["FLUSH PRIVILEGES;", f"CREATE USER {USER}@'%';", f"GRANT ALL ON *.* TO {USER}@'%';", ""]
        made = subprocess.run(
            self.command("--bootstrap"), input="\n".join(lines).encode(), capture_output=True, timeout=START_SECONDS
        )
        if made.returncode != 0:
            raise RuntimeError(f"MariaDB could not be made:\n{made.stderr.decode()}")

    def start(self) -> None:
        """Start it, and wait until it answers; one that was ended with -9 recovers first."""
        options = [f"--bind-address={self.host}", f"--port={self.port}", "--max-connections=200"]
        with (self.folder / "log").open("ab") as log:
            self.child = subprocess.Popen(self.command(*options), stdout=log, stderr=log, cwd=self.folder)
        until = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.child.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MariaDB did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as line:
                return bool(line.recv(1))  # it speaks first
        except OSError:
            return False

    def crash(self) -> None:
        """End it with -9, whatever it is doing."""
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def stop(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.crash()  # nothing in it is wanted any more


def program() -> Path | None:
    found = shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    return Path(found) if found and all((SCRIPTS / name).exists() for name in MAKING) else None


@contextmanager
def running(program: Path, *, durable: bool = False, in_memory: bool = False) -> Iterator[MariadbServer]:
    folder = folder_for("mariadb", in_memory=in_memory)
    try:
        as_another_user(folder)
        server = MariadbServer(program, folder, durable, port=free_port())
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    found = program()
    if found is None:
        pytest.skip("MariaDB's server is not installed: apt-get install mariadb-server-core")
    with running(found) as server:
        yield server
