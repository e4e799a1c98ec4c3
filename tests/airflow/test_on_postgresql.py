"""The same Airflow with its metadata, and so the records of dispatch, in PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest
from psycopg2.extras import RealDictCursor

from dispatch_core.environments import Environment
from tests.airflow.conftest import SETTINGS, Airflow, dags
from tests.postgres import PostgresServer

pytestmark = pytest.mark.long


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


@pytest.fixture(scope="module")
def on_postgresql(engine: Environment, postgres_server: PostgresServer) -> Iterator[OnPostgresql]:
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


@pytest.mark.promise("A2")
def test_a_triggerer_that_is_killed_and_replaced_loses_nothing(on_postgresql: OnPostgresql) -> None:
    run = on_postgresql.begin("plain", "killed")
    run.wait_until_it_runs()
    run.wait("it is supervised", lambda: run.job().row["lease_owner"])
    on_postgresql.crash("triggerer")
    run.go()
    on_postgresql.restart("triggerer")
    run.wait_until_done()
    run.assert_one_run()
    assert on_postgresql.rows("SELECT state FROM dag_run WHERE run_id = ?", run.id) == [{"state": "success"}]
