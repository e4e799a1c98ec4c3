"""A job whose worker and triggerer reach no database: their records are behind Airflow's API server."""

import pytest

from tests.airflow.conftest import Airflow


@pytest.mark.long
@pytest.mark.promise("A1")
@pytest.mark.promise("A2")
def test_a_job_whose_records_go_through_the_api_server(airflow: Airflow) -> None:
    run = airflow.begin("over_http")
    run.wait_until_it_runs()
    run.wait("it is supervised", lambda: run.job().row["lease_owner"])
    run.go()
    run.wait_until_done()
    run.assert_one_run()
    served = airflow.shelter.log("api-server").read_text(errors="replace")
    commits = served.count("/dispatch/api/record")
    assert commits >= run.job().record.revision, "its commits did not go through the API server"
    for path in (airflow.folder / "logs").rglob("*.log"):
        assert airflow.page.password not in path.read_text(errors="replace")
    for name in airflow.pids:
        assert airflow.page.password not in airflow.shelter.log(name).read_text(errors="replace")
