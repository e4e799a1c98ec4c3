"""A real Airflow to throw away: scheduler, triggerer, DAG processor and API server, four programs in a temporary place.

One rule: it meets nothing of the user's own Airflow, and leaves nothing behind: settings come from here, files lie in
the shelter's folder, and all that it starts is the shelter's. Records of dispatch live in its metadata database, found
by an Airflow connection, as in an Airflow to keep. What waits is bounded, and ends early when a program has ended.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dispatch_core.demo.page import NotYet, Page
from dispatch_core.demo.shelter import Shelter
from dispatch_core.environments import Environment, outside, tell
from dispatch_core.errors import DispatchError

COMPONENTS = {
    "api-server": ("api-server", "--host", "127.0.0.1", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
HEALTH = {"scheduler": "scheduler", "triggerer": "triggerer", "dag-processor": "dag_processor"}
"""What Airflow's health page calls the components that it knows of."""

MIGRATE_SECONDS = 180.0
HEALTHY_SECONDS = 240.0
LOOKING_SECONDS = 0.3

T = TypeVar("T")


class ThrowawayAirflow:
    """One Airflow, in an environment that has it; `start` brings it up, `stop` takes it away.

    `dags` are files, copied into its DAGs folder. `settings` are environment variables that every component gets, over
    those that are set here. `database`: a SQLAlchemy URL; by default, a SQLite file in the folder.
    """

    def __init__(
        self,
        environment: Environment,
        dags: Iterable[Path],
        *,
        settings: Mapping[str, str] | None = None,
        database: str = "",
        prefix: str = "dispatch-airflow-",
        say: Callable[[str], None] = tell,
    ) -> None:
        self.environment, self.dags, self.say = environment, tuple(dags), say
        self.shelter = Shelter(prefix)
        self.folder = self.shelter.folder
        self.spool, self.file = self.folder / "spool", self.folder / "airflow.db"
        self.database = database or f"sqlite:///{self.file}"
        self.page = Page(free_port(), "admin", secrets.token_urlsafe(9))
        self.settings = {**self._settings(), **(settings or {})}
        self.pids: dict[str, int] = {}

    def start(self) -> None:
        """Make the database, start the four, and wait until Airflow says that all of them are healthy."""
        for name in ("dags", "home", "tmp"):
            (self.folder / name).mkdir()
        self.spool.mkdir(mode=0o700)
        for dag in self.dags:
            shutil.copy(dag, self.folder / "dags")
        passwords = self.folder / "passwords.json"
        passwords.touch(0o600)
        passwords.write_text(json.dumps({self.page.user: self.page.password}))
        began = time.monotonic()
        self.shelter.run("migrate", self._command("db", "migrate"), self.settings, MIGRATE_SECONDS)
        if self.database.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(self.file)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # else who reads keeps all others from writing
        self.say(f"airflow db migrate took {time.monotonic() - began:.0f} s")
        for component in COMPONENTS:
            self.launch(component)
        self.wait("the API server answers", self.page.health, HEALTHY_SECONDS)
        self.page.warm()
        self.wait("all four are healthy", self._healthy, HEALTHY_SECONDS)

    def launch(self, component: str, name: str = "") -> int:
        """Start one component, or another one of its kind under a name of its own; its pid."""
        words = list(COMPONENTS[component])
        if component == "api-server":
            words += ["--port", str(self.page.port)]
        self.pids[name or component] = self.shelter.start(name or component, self._command(*words), self.settings)
        return self.pids[name or component]

    def crash(self, name: str) -> None:
        """End a component, and all that it has forked, with SIGKILL."""
        self.shelter.crash(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a component and all that it has forked: SIGSTOP, SIGCONT, SIGTERM."""
        self.shelter.signal(name, number)

    def restart(self, component: str) -> None:
        """Start a component again, and wait until Airflow has heard from the new one."""
        heard = self.page.health()[HEALTH[component]][f"latest_{HEALTH[component]}_heartbeat"]
        self.launch(component)
        self.wait(f"the new {component} is heard", lambda: self._heard_again(component, heard), HEALTHY_SECONDS)

    def run_dag(self, dag: str, settings: dict[str, Any] | None = None) -> str:
        """Let a DAG's runs begin once Airflow has read its file, and start one; its id."""
        self.wait(f"Airflow has read the DAG {dag}", lambda: self.page.unpause(dag), 120.0)
        return self.wait(f"a run of {dag} is made", lambda: self.page.trigger(dag, settings), 60.0)

    def wait(self, what: str, condition: Callable[[], T], seconds: float) -> T:
        """Ask until the answer is true, and return it. Raises DispatchError in time, or when a program has ended."""
        until, last = time.monotonic() + seconds, ""
        while True:
            try:
                if answer := condition():
                    return answer
            except NotYet as error:
                last = f": {error}"
            for name, code in self.shelter.ended().items():
                if code > 0:  # not ended by a signal, and not by the end of its work
                    raise DispatchError(f"{name} has ended with {code}: {self.shelter.last_lines(name)}")
            if time.monotonic() > until:
                raise DispatchError(f"waited {seconds:g} s in vain until {what}{last}")
            time.sleep(LOOKING_SECONDS)

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Rows of Airflow's own SQLite file, read past Airflow and past dispatch."""
        with contextlib.closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True, timeout=30.0)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement, values)]

    def stop(self) -> None:
        """End everything and remove the folder; a second time, nothing happens."""
        self.shelter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _healthy(self) -> bool:
        health = self.page.health()
        return all(health[name]["status"] == "healthy" for name in ("metadatabase", *HEALTH.values()))

    def _heard_again(self, component: str, heard: str) -> bool:
        newest = self.page.health()[HEALTH[component]]
        return bool(newest["status"] == "healthy" and newest[f"latest_{HEALTH[component]}_heartbeat"] > heard)

    def _command(self, *words: str) -> list[str]:
        return [str(self.environment.python), "-m", "airflow", *words]

    def _settings(self) -> dict[str, str]:
        """The environment of every component: the caller's, without its Airflow, and with this one."""
        own = {name: value for name, value in outside().items() if not name.startswith("AIRFLOW")}
        connection = {"conn_type": "dispatch", "extra": {"url": self.database, "spool": str(self.spool)}}
        airflow = {
            "core__dags_folder": str(self.folder / "dags"),
            "core__load_examples": "False",
            "core__executor": "LocalExecutor",
            "core__parallelism": "4",
            "core__execution_api_server_url": f"{self.page.url}/execution/",
            "core__fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "core__hostname_callable": "socket.gethostname",
            "core__simple_auth_manager_users": f"{self.page.user}:admin",
            "core__simple_auth_manager_passwords_file": str(self.folder / "passwords.json"),
            "database__sql_alchemy_conn": self._airflow_url(),
            "api__base_url": self.page.url,
            "api__secret_key": secrets.token_hex(32),
            "api_auth__jwt_secret": secrets.token_hex(32),
            "logging__base_log_folder": str(self.folder / "logs"),
            "usage_data_collection__enabled": "False",
            # A triggerer that was ended with SIGKILL is noticed after this many seconds without a heartbeat.
            "triggerer__triggerer_health_check_threshold": "10",
            "triggerer__job_heartbeat_sec": "2",
        }
        return {
            **own,
            **{f"AIRFLOW__{name.upper()}": value for name, value in airflow.items()},
            "AIRFLOW_HOME": str(self.folder / "home"),
            "AIRFLOW_CONN_DISPATCH_DEFAULT": json.dumps(connection),
            "PATH": f"{self.environment.bin}{os.pathsep}{own.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder / "tmp"),
        }

    def _airflow_url(self) -> str:
        """SQLite has one writer at a time: Airflow waits for its turn longer than it would by itself."""
        if self.database.startswith("sqlite"):
            return f"{self.database}?timeout=60"
        return self.database.replace("postgresql://", "postgresql+psycopg2://", 1)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port
