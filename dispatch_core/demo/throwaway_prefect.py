"""A real Prefect to throw away: server, runner and `dispatch supervise --prefect`, three programs in a temporary place.

One rule: as with the throwaway Airflow, it meets nothing of the user's own Prefect and leaves nothing behind. Records
of dispatch lie in the server's own SQLite file, as in a Prefect to keep.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dispatch_core.demo.shelter import Shelter
from dispatch_core.demo.throwaway import free_port
from dispatch_core.environments import Environment, outside, tell
from dispatch_core.errors import DispatchError

UP_SECONDS = 240.0
SETTING_UP_SECONDS = 120.0
LOOKING_SECONDS = 0.3
ANSWER_SECONDS = 30.0

T = TypeVar("T")


class ThrowawayPrefect:
    """One Prefect, in an environment that has it; `start` brings it up, `stop` takes it away. `flow`: a file that
    serves a flow as the deployment `demo`."""

    def __init__(
        self,
        environment: Environment,
        flow: Path,
        *,
        prefix: str = "dispatch-prefect-",
        say: Callable[[str], None] = tell,
    ) -> None:
        self.environment, self.flow, self.say = environment, flow, say
        self.shelter = Shelter(prefix)
        self.folder = self.shelter.folder
        self.spool, self.file = self.folder / "dispatch" / "spool", self.folder / "prefect.db"
        self.port = free_port()
        self.pids: dict[str, int] = {}
        self.settings = {
            **{name: value for name, value in outside().items() if not name.startswith(("PREFECT", "DISPATCH"))},
            "HOME": str(self.folder),
            "PREFECT_HOME": str(self.folder),
            "PREFECT_API_URL": f"{self.page}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_RUNNER_POLL_FREQUENCY": "2",
            "DO_NOT_TRACK": "1",
            "NO_COLOR": "1",
            "DISPATCH_HOME": str(self.folder / "dispatch"),
            "PATH": f"{environment.bin}{os.pathsep}{outside().get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.folder),
        }

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Bring up the server, make dispatch's tables in its database, then the service and the runner."""
        self.launch("server", "-m", "prefect", "server", "start", "--port", str(self.port))
        self.wait("the server answers", lambda: self.ask("GET", "/health"), UP_SECONDS)
        python = str(self.environment.python)
        setting_up = [python, "-m", "prefect_collection.setup"]
        self.shelter.run("setup", setting_up, self.settings, SETTING_UP_SECONDS)
        self.launch("service", "-m", "dispatch_core", "supervise", "--prefect")
        self.launch("runner", str(self.flow))

    def launch(self, name: str, *words: str) -> None:
        """Start one program with the environment's Python."""
        self.pids[name] = self.shelter.start(name, [str(self.environment.python), *words], self.settings)

    def run(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Ask for a run of a deployment, once the runner serves it; its id."""
        found = self.wait(
            "the runner serves the flow", lambda: self.ask("GET", f"/deployments/name/{deployment}"), 120.0
        )
        made = self.ask("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        if made is None:
            raise DispatchError("the Prefect server has made no flow run")
        return str(made["id"])

    def again(self, run: str) -> None:
        """Have a flow run run again, as the button on its page does."""
        body = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}}
        answer = self.ask("POST", f"/flow_runs/{run}/set_state", body)
        if answer is None or answer["status"] != "ACCEPT":
            raise DispatchError(f"Prefect does not run the flow run again: {answer}")

    def state(self, run: str) -> str:
        """The type of a flow run's state, in small letters; "" where there is no answer."""
        found = self.ask("GET", f"/flow_runs/{run}")
        return str(found["state_type"]).lower() if found else ""

    def wait(self, what: str, condition: Callable[[], T], seconds: float) -> T:
        """Ask until the answer is true, and return it. Raises DispatchError in time, or when a program has ended."""
        until = time.monotonic() + seconds
        while not (answer := condition()):
            for name, code in self.shelter.ended().items():
                if code > 0:
                    raise DispatchError(f"{name} has ended with {code}: {self.shelter.last_lines(name)}")
            if time.monotonic() > until:
                raise DispatchError(f"waited {seconds:g} s in vain until {what}")
            time.sleep(LOOKING_SECONDS)
        return answer

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """One question to the API; None where there is no answer yet."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.page}/api{path}", data, headers, method=method)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                text = answer.read()
        except OSError:
            return None
        return json.loads(text) if text else None

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        """Rows of the server's own SQLite file, read past Prefect and past dispatch."""
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
