"""The same Airflow with its metadata, and so the records of dispatch, in PostgreSQL."""

import pytest

from tests.airflow.conftest import OnPostgresql

pytestmark = pytest.mark.long


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
