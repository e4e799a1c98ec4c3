"""Airflow's own page and API, asked over HTTP as any of its users would.

One rule: nothing is known here of how that Airflow was started; an answer that is not there yet, or a refusal that a
server on its way up gives, is None or raises NotYet, and the caller decides how long to go on asking.
"""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote

from dispatch_core.errors import DispatchError

ANSWER_SECONDS = 20.0
"""The longest wait for one answer: a server that starts on a busy machine is slow."""

WARMING_SECONDS = 120.0


class NotYet(DispatchError):
    """The server did not answer, or not with what was asked for."""


class Page:
    """One Airflow's API server."""

    def __init__(self, port: int, user: str, password: str) -> None:
        self.port, self.user, self.password = port, user, password
        self._token = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def health(self) -> dict[str, dict[str, Any]]:
        """The status of each component, and its newest heartbeat. Raises NotYet."""
        health: dict[str, dict[str, Any]] = self._asked("GET", "/api/v2/monitor/health")
        return health

    def warm(self) -> None:
        """Make the server build the API that workers use, which it puts off until it is first asked, for so long that
        the first worker gives up meanwhile and asks again."""
        self._asked("GET", "/execution/health", seconds=WARMING_SECONDS)

    def unpause(self, dag: str) -> bool:
        """Let the DAG's runs begin: whether they may. Raises NotYet while Airflow has not read its file."""
        return not self.ask("PATCH", f"/dags/{quote(dag)}?update_mask=is_paused", {"is_paused": False})["is_paused"]

    def trigger(self, dag: str, settings: dict[str, Any] | None = None) -> str:
        """Start a run of the DAG; its id."""
        run = self.ask("POST", f"/dags/{quote(dag)}/dagRuns", {"logical_date": None, "conf": settings or {}})
        return str(run["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        """The state of a DAG's run."""
        return str(self.ask("GET", f"/dags/{quote(dag)}/dagRuns/{quote(run)}")["state"])

    def instances(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Every task instance of a DAG's run: its `task_id`, `map_index`, `state`, `try_number` and so on."""
        asked = f"/dags/{quote(dag)}/dagRuns/{quote(run)}/taskInstances?limit=100"
        instances: list[dict[str, Any]] = self.ask("GET", asked)["task_instances"]
        return instances

    def states(self, dag: str, run: str) -> dict[tuple[str, int], str]:
        """The state of each, by name and map index (-1: not mapped); "" before it has one."""
        found = self.instances(dag, run)
        return {(row["task_id"], row["map_index"]): row["state"] or "" for row in found}

    def state(self, dag: str, run: str, name: str, map_index: int = -1) -> str:
        """The state of one of them; "" where it has none yet."""
        return self.states(dag, run).get((name, map_index), "")

    def link(self, dag: str, run: str, name: str) -> str:
        """Where a person looks at one of them."""
        return f"{self.url}/dags/{quote(dag)}/runs/{quote(run)}/tasks/{quote(name)}"

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Any question to Airflow's API, as the known user. Raises NotYet."""
        if not self._token:
            told = {"username": self.user, "password": self.password}
            self._token = self._asked("POST", "/auth/token", told)["access_token"]
        return self._asked(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"})

    def _asked(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            got = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotYet(f"Airflow's API server does not answer {method} {path}: {error}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise NotYet(f"Airflow's API server answers {method} {path} with {answer.status}: {got[:500]!r}")
        return json.loads(got) if got else {}
