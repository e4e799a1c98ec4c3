"""A job on Kubernetes in a real Airflow, by a connection of the type `kubernetes`; the API server is the tests' own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch_core.demo.witness import Line
from dispatch_core.record import Result
from tests.airflow.conftest import Airflow, assert_settled
from tests.kubernetes.beside import IMAGE, running
from tests.kubernetes.rig import kubeconfig
from tests.kubernetes.server import ApiServer
from tests.kubernetes.server.kinds import JOB

ENDED = [Line(submission=1, run=1, what="start"), Line(submission=1, run=1, what="end")]


@pytest.fixture(scope="module")
def pods(airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server, and the connection `pods` to it."""
    with running() as server:
        folder: Path = tmp_path_factory.mktemp("pods")
        extra = {"kube_config_path": str(kubeconfig(server.url, folder)), "image": IMAGE, "proxy": "0s"}
        told = {"connection_id": "pods", "conn_type": "kubernetes", "extra": json.dumps(extra)}
        airflow.page.ask("POST", "/connections", told)
        yield server


def left(server: ApiServer) -> list[str]:
    """Jobs that are there and have not ended."""
    jobs = server.store.all(JOB)
    return [job["metadata"]["name"] for job in jobs if not job.get("status", {}).get("conditions")]


@pytest.mark.long
@pytest.mark.promise("A1")
@pytest.mark.promise("A2")
def test_a_task_runs_its_job_once(airflow: Airflow, pods: ApiServer) -> None:
    run = airflow.begin("on_kubernetes")
    run.wait_until_it_runs()
    run.go()
    run.wait_until_done()
    assert set(run.states().values()) == {"success"}
    run.wait("its job is settled", lambda: run.job().record.settled)
    job = run.job()
    assert_settled(job)
    assert (job.record.scheduler, job.opened) == ("pods", [(1, 1)])
    assert run.lines() == ENDED
    assert left(pods) == []


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_task_marked_failed_cancels_its_job(airflow: Airflow, pods: ApiServer) -> None:
    run = airflow.begin("on_kubernetes", "cancelled_on_kubernetes")
    run.wait_until_it_runs()
    run.wait("it is supervised", lambda: run.job().row["lease_owner"])
    airflow.page.ask("PATCH", f"/dags/on_kubernetes/dagRuns/{run.id}/taskInstances/job", {"new_state": "failed"})
    run.wait("its job is settled", lambda: run.job().record.settled)
    record = run.job().record
    assert record.outcome is not None
    assert (record.outcome.result, len(record.submissions)) == (Result.CANCELLED, 1)
    assert run.lines() == ENDED[:1]
    assert left(pods) == []
