"""A real Prefect server and runner for the tests: started in a directory of their own, asked over HTTP, ended by pid.

The tests run in the core's environment, which has no Prefect; the server and the flows run in the engine's.
"""

import http
import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from dispatch_core.environments import Environment, outside

START_SECONDS = 240
"""A first start makes the database, which took 40 s on an idle machine."""
STOP_SECONDS = 30
BUSY_SECONDS = 60

SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(holds: Callable[[], Any], what: str, seconds: float = 240) -> Any:
    """What `holds` returns, once it is true."""
    end = time.monotonic() + seconds
    while not (held := holds()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)
    return held


class Prefect:
    """One server, its home, and what runs against it."""

    def __init__(self, environment: Environment, home: Path, settings: Mapping[str, str] | None = None) -> None:
        """`settings`: variables that all of its programs get, over those that are set here."""
        self.environment, self.home = environment, home
        self.url = f"http://127.0.0.1:{free_port()}/api"
        self.database = home / "prefect.db"
        self.dispatch = home / "dispatch"
        self.env = {
            **{name: value for name, value in outside().items() if not name.startswith(("PREFECT", "DISPATCH"))},
            **SETTINGS,
            "HOME": str(home),
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.url,
            "DISPATCH_HOME": str(self.dispatch),
            **(settings or {}),
        }

    @contextmanager
    def started(self, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """A program of the engine's environment, in a session of its own; at the end, all of it is ended."""
        name = Path(command[-1]).stem
        with (self.home / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "INT", *command],
                env=self.env,
                cwd=self.environment.root,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield child
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            child.stdin.close() if child.stdin else None

    @contextmanager
    def server(self) -> Iterator[None]:
        port = self.url.rpartition(":")[2].partition("/")[0]
        with self.started(self.environment.bin / "prefect", "server", "start", "--port", port) as child:
            until(lambda: self._is_up(child), f"a Prefect server at {self.url}", START_SECONDS)
            yield

    def _is_up(self, child: subprocess.Popen[bytes]) -> bool:
        assert child.poll() is None, (self.home / f"{self.url.rpartition(':')[2].partition('/')[0]}.log").read_text()
        try:
            return bool(self.ask("GET", "/health"))
        except OSError:
            return False

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request to the API, again while its database is busy, as Prefect's own client does; else HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"}, method=method)  # noqa: S310 - our own server
        end = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                if error.code != http.HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > end:
                    raise
            time.sleep(0.5)

    def run(
        self, *command: str | Path, env: dict[str, str] | None = None, seconds: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """A program of the engine's environment, run to its end."""
        return subprocess.run(
            command,
            env={**self.env, **(env or {})},
            cwd=self.environment.root,
            text=True,
            capture_output=True,
            timeout=seconds,
            check=False,
        )

    def start_flow(self, name: str, folder: Path) -> str:
        """A flow run of a served flow; returns its id once the runner knows the deployment."""

        def deployment() -> Any:
            try:
                return self.ask("GET", f"/deployments/name/{name}/tests")
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                raise

        found = until(deployment, f"the runner serves {name}")
        body = {"parameters": {"folder": str(folder)}, "idempotency_key": folder.as_posix()}
        return str(self.ask("POST", f"/deployments/{found['id']}/create_flow_run", body)["id"])

    @property
    def version(self) -> str:
        """Of the server that answers."""
        return str(self.ask("GET", "/admin/version"))

    def state(self, flow_run: str) -> str:
        return str(self.ask("GET", f"/flow_runs/{flow_run}")["state"]["type"])

    def knows(self, flow_run: str) -> bool:
        """Whether the server has this flow run."""
        try:
            return bool(self.ask("GET", f"/flow_runs/{flow_run}"))
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.NOT_FOUND:
                return False
            raise

    def service(self, *options: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """`dispatch supervise --prefect`, as long as the context lasts."""
        return self.started(self.environment.python, "-m", "dispatch_core", "supervise", *options, "--prefect")

    def set_state(self, flow_run: str, type: str, name: str) -> None:
        """What the page and the command line do."""
        body = {"state": {"type": type, "name": name}}
        answer = self.ask("POST", f"/flow_runs/{flow_run}/set_state", body)
        assert answer["status"] == "ACCEPT", answer

    def logs(self, flow_run: str) -> list[dict[str, Any]]:
        """What the server keeps of a flow run's log."""
        return list(self.ask("POST", "/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}}))

    def rows(self, query: str, *values: str) -> list[dict[str, Any]]:
        """What stands in the server's own database."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(query, values)]
