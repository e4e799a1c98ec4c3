"""One throwaway Airflow for all end-to-end tests here, and Airflow's environment for the provider's own.

What is in `inside` runs in the environment that has Airflow, as one test here for each test there. None of this imports
Airflow: it is asked over HTTP, its database is read with SQL, and its programs are ended by pid.
"""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2
import pytest
from psycopg2.extras import RealDictCursor

from dispatch_core.demo import witness
from dispatch_core.demo.throwaway import ThrowawayAirflow
from dispatch_core.demo.witness import Job, Line
from dispatch_core.environments import Environment, make_environment
from dispatch_core.record import Result
from tests.postgres import PostgresServer

HERE = Path(__file__).parent

# The folders here are imported in Airflow's environment, or by Airflow itself.
collect_ignore = ["dags", "inspect", *([] if find_spec("airflow") is not None else ["inside"])]

SETTINGS = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}
"""What makes Airflow notice a lost worker in seconds."""

DEFERRED_SECONDS = 120.0
DONE_SECONDS = 150.0
ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}


@dataclass
class Run:
    """One run of a DAG, and the jobs of its tasks."""

    airflow: ThrowawayAirflow
    dag: str
    id: str
    mark: str

    @property
    def folder(self) -> Path:
        return self.airflow.folder / "tests"

    def lines(self, name: str = "") -> list[Line]:
        """What the runs of one job have written."""
        return witness.lines(self.folder / f"{name or self.mark}.lines")

    def go(self) -> None:
        """Let the runs end."""
        (self.folder / f"{self.mark}.go").touch()

    def states(self) -> dict[tuple[str, int], str]:
        return self.airflow.page.states(self.dag, self.id)

    def instance(self) -> dict[str, Any]:
        """The task instance of a DAG with one task."""
        (instance,) = self.airflow.page.instances(self.dag, self.id)
        return instance

    def jobs(self) -> list[Job]:
        return witness.jobs(self.airflow.rows, f"airflow/{self.dag}/{self.id}/")

    def job(self) -> Job:
        (job,) = self.jobs()
        return job

    def history(self) -> list[witness.Told]:
        return witness.history(self.airflow.rows, self.job().record.uid)

    def logged(self, text: str) -> int:
        """How often the logs of its tasks, those of their triggers among them, say so."""
        folder = self.airflow.folder / "logs" / f"dag_id={self.dag}" / f"run_id={self.id}"
        return sum(path.read_text(errors="replace").count(text) for path in folder.rglob("*.log"))

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = DEFERRED_SECONDS) -> Any:
        return self.airflow.wait(f"{what} ({self.dag})", condition, seconds)

    def wait_until_it_runs(self) -> None:
        """The task is deferred, and the first run of its job has begun."""
        self.wait("its job runs", self.lines)
        self.wait("it is deferred", lambda: set(self.states().values()) == {"deferred"})

    def wait_until_done(self) -> None:
        self.wait("its tasks have ended", lambda: set(self.states().values()) <= ENDED, DONE_SECONDS)

    def assert_one_run(self) -> None:
        """One job, settled; one run, which the record authorized and which wrote that it began and ended."""
        assert set(self.states().values()) == {"success"}
        job = self.job()
        assert self.lines() == [Line(submission=1, run=1, what="start"), Line(submission=1, run=1, what="end")]
        assert job.opened == [(1, 1)]
        assert_settled(job)


def assert_settled(job: Job) -> None:
    """Settled as succeeded, in the table and in the record, and nothing spent."""
    assert (bool(job.row["settled"]), job.row["result"]) == (True, "succeeded")
    assert job.record.settled
    assert job.record.outcome is not None
    assert job.record.outcome.result is Result.SUCCEEDED
    assert job.record.budget == ()


class Listings(NamedTuple):
    """How often a triggerer has listed the spool."""

    seconds: float
    """When it was written down, since 1970."""
    count: int
    triggers: int
    """How many share the listings."""


class Airflow(ThrowawayAirflow):
    """The tests' Airflow: its jobs write to the folder `tests`, and wait there for a file."""

    bait = (
        *("bait-of-a-job-6f1d2a", "bait-of-a-connection-93be07"),
        *("bait-of-a-uri-5a08cc", "bait-of-a-url-d417e9"),
    )
    """The passwords of the connections `vault`, which a job is given, `dispatch_default`, and of two that lead to no
    database: in the URI of one, and in the URL that the other has in its extra."""

    @property
    def clusters(self) -> Path:
        """The clusters file of all its programs; a test that needs a cluster writes it."""
        return self.folder / "tests" / "clusters.yaml"

    def prepare(self) -> None:
        """What the DAGs, and the count of listings, need before it starts."""
        (self.folder / "tests").mkdir()
        self.settings["DISPATCH_TEST_FOLDER"] = str(self.folder / "tests")
        self.settings["DISPATCH_CLUSTERS"] = str(self.clusters)
        self.settings["PYTHONPATH"] = str(HERE / "inspect")
        self.settings["AIRFLOW_CONN_VAULT"] = json.dumps({"conn_type": "generic", "password": self.bait[0]})
        records = json.loads(self.settings["AIRFLOW_CONN_DISPATCH_DEFAULT"])
        self.settings["AIRFLOW_CONN_DISPATCH_DEFAULT"] = json.dumps({**records, "password": self.bait[1]})
        self.settings["AIRFLOW_CONN_AWAY_URI"] = f"dispatch://ann:{self.bait[2]}@127.0.0.1:1/records"
        url = f"postgresql://ann:{self.bait[3]}@127.0.0.1:1/records"
        self.settings["AIRFLOW_CONN_AWAY_URL"] = json.dumps({"conn_type": "dispatch", "extra": {"url": url}})
        self.settings["AIRFLOW_CONN_DISPATCH_HTTP"] = json.dumps(
            {
                "conn_type": "dispatch",
                "host": f"{self.page.url}/dispatch",
                "login": self.page.user,
                "password": self.page.password,
                "extra": {"spool": str(self.spool)},
            }
        )

    def begin(self, dag: str, mark: str = "") -> Run:
        """Start a run of a DAG whose job writes to files that begin with the mark."""
        mark = mark or dag
        return Run(self, dag, self.run_dag(dag, {"mark": mark}), mark)

    def owner(self, run: Run) -> str:
        """The name of the triggerer that Airflow has given the run's one trigger to; "" between two."""
        asked = (
            "SELECT t.triggerer_id AS owner, (SELECT max(id) FROM job WHERE job_type = 'TriggererJob') AS newest"
            " FROM trigger t JOIN task_instance i ON i.trigger_id = t.id WHERE i.run_id = ?"
        )
        (row,) = self.rows(asked, run.id)
        if row["owner"] is None:
            return ""
        return "second" if "second" in self.pids and row["owner"] == row["newest"] else "triggerer"

    def listings(self) -> Listings:
        """What the adapter in a triggerer has counted, as written down last."""
        files = (self.folder / "tests").glob("listings-*")
        lines = [path.read_text().splitlines()[-1].split() for path in files]
        seconds, count, triggers = max((float(seconds), int(count), int(users)) for seconds, count, users in lines)
        return Listings(seconds, count, triggers)

    def blocked(self) -> list[float]:
        """How long the event loops of triggerers stood still, each time that Airflow noticed, in seconds."""
        logs = [self.shelter.log(name).read_text(errors="replace") for name in self.pids if "api" not in name]
        return [float(seconds) for text in logs for seconds in re.findall(r"was blocked for ([0-9.]+) seconds", text)]

    def triggerers(self) -> int:
        """How many triggerers Airflow has heard from in the last seconds."""
        heard = (
            "SELECT count(*) AS n FROM job WHERE job_type = 'TriggererJob' AND state = 'running'"
            " AND latest_heartbeat > datetime('now', '-6 seconds')"
        )
        return int(self.rows(heard)[0]["n"])


class OnPostgresql(Airflow):
    """Its rows are asked of PostgreSQL, past Airflow and past dispatch."""

    def rows(self, statement: str, *values: object) -> list[dict[str, Any]]:
        connection = psycopg2.connect(self.database)
        try:
            with connection, connection.cursor(cursor_factory=RealDictCursor) as cursor:
                cursor.execute(statement.replace("?", "%s"), values)
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    def triggerers(self) -> int:
        """How many triggerers Airflow has heard from in the last seconds."""
        heard = (
            "SELECT count(*) AS n FROM job WHERE job_type = 'TriggererJob' AND state = 'running'"
            " AND latest_heartbeat > now() - interval '6 seconds'"
        )
        return int(self.rows(heard)[0]["n"])


def dags() -> list[Path]:
    """The files with the tests' DAGs."""
    examples = HERE.parents[1] / "examples"
    return [
        *(HERE / "dags" / name for name in ("jobs.py", "kills.py")),
        examples / "slurm_dag.py",
    ]


@pytest.fixture(scope="session")
def engine() -> Environment:
    """Airflow's environment, with pytest in it."""
    return make_environment("airflow", dev=True)


@pytest.fixture(scope="session")
def airflow(engine: Environment) -> Iterator[Airflow]:
    """Four programs that are up and well; what a test ends, it starts again."""
    with Airflow(engine, dags(), settings=SETTINGS, prefix="dispatch-tests-") as made:
        made.prepare()
        began = time.monotonic()
        made.start()
        made.say(f"the tests' Airflow is up after {time.monotonic() - began:.0f} s")
        yield made


@pytest.fixture(scope="session")
def on_postgresql(engine: Environment, postgres_server: PostgresServer) -> Iterator[OnPostgresql]:
    """The same Airflow with its metadata, and so the records of dispatch, in PostgreSQL."""
    maker = psycopg2.connect(postgres_server.url("postgres"))
    maker.autocommit = True
    with maker.cursor() as cursor:
        cursor.execute("CREATE DATABASE airflow_end_to_end")
    maker.close()
    url = postgres_server.url("airflow_end_to_end")
    with OnPostgresql(engine, dags(), settings=SETTINGS, database=url, prefix="dispatch-tests-") as made:
        made.prepare()
        made.start()
        yield made


@pytest.fixture
def second_triggerer(airflow: Airflow) -> Iterator[str]:
    """The name of another triggerer, up and well; gone after the test."""
    airflow.launch("triggerer", "second")
    try:
        airflow.wait("two triggerers are heard", lambda: airflow.triggerers() == 2, 120.0)
        yield "second"
    finally:
        airflow.signal("triggerer", signal.SIGCONT)
        airflow.crash("second")
        del airflow.pids["second"]
