"""Jobs on a real Slurm cluster in a real Airflow: named in the clusters file, and by a connection over SSH."""

import json
from typing import Any

import pytest

from dispatch_core.demo import witness
from dispatch_core.demo.witness import Line
from dispatch_core.record import Result
from tests.airflow.conftest import Airflow, Run, assert_settled
from tests.slurm.beside import clusters_file, fields, shared
from tests.slurm.cluster import Cluster
from tests.slurm.sshd import USER, Sshd

ENDED = [Line(submission=1, run=1, what="start"), Line(submission=1, run=1, what="end")]


@pytest.fixture(scope="module", autouse=True)
def named(airflow: Airflow, alps: Cluster) -> None:
    """The clusters file of Airflow's programs has the cluster."""
    airflow.clusters.write_text(clusters_file(alps, shared(alps, "named")))


def returned(run: Run, name: str) -> dict[str, Any]:
    """What a task has returned, as Airflow's API tells it."""
    asked = f"/dags/{run.dag}/dagRuns/{run.id}/taskInstances/{name}/xcomEntries/return_value?stringify=false"
    value = run.airflow.page.ask("GET", asked)["value"]
    return dict(json.loads(value) if isinstance(value, str) else value)


@pytest.mark.long
@pytest.mark.promise("A1")
@pytest.mark.promise("A2")
def test_the_example_runs_each_job_once(airflow: Airflow, alps: Cluster, whole_sshd: Sshd) -> None:
    """One as root, by the clusters file; one as another user, over SSH."""
    reached = {"key_file": str(whole_sshd.key_file), "known_hosts": str(whole_sshd.known_hosts)}
    extra = json.dumps({**reached, **fields(alps, shared(alps, "reached"))})
    host = {"host": "127.0.0.1", "port": whole_sshd.port, "login": USER, "extra": extra}
    airflow.page.ask("POST", "/connections", {"connection_id": "alps_login", "conn_type": "slurm_ssh", **host})
    folder = shared(alps, "lines")
    run = Run(airflow, "slurm_example", airflow.run_dag("slurm_example", {"folder": str(folder)}), "slurm_example")
    run.wait_until_done()
    assert run.states() == {("train", -1): "success", ("simulate", -1): "success"}
    jobs = {job.record.scheduler: job for job in run.jobs()}
    for name, scheduler in (("train", "alps"), ("simulate", "alps_login")):
        job = jobs[scheduler]
        assert witness.lines(folder / f"{name}.lines") == ENDED
        assert job.opened == [(1, 1)]
        assert_settled(job)
        told = returned(run, name)
        assert (told["key"], told["uid"], told["objects"]) == (
            job.record.key,
            job.record.uid,
            [object.id for object in job.record.objects],
        )
        assert (told["outcome"], told["exit_code"], told["submissions"], told["runs"]) == ("succeeded", 0, 1, 1)
    assert (folder / "train.lines").owner() == "root"
    assert (folder / "simulate.lines").owner() == USER
    assert alps.leftovers() == []


@pytest.mark.long
@pytest.mark.promise("A5")
def test_a_task_marked_failed_cancels_its_job(airflow: Airflow, alps: Cluster) -> None:
    run = airflow.begin("on_slurm")
    run.wait_until_it_runs()
    run.wait("it is supervised", lambda: run.job().row["lease_owner"])
    assert len(alps.leftovers()) == 1
    airflow.page.ask("PATCH", f"/dags/on_slurm/dagRuns/{run.id}/taskInstances/job", {"new_state": "failed"})
    run.wait("its job is settled", lambda: run.job().record.settled)
    record = run.job().record
    assert record.outcome is not None
    assert (record.outcome.result, len(record.submissions)) == (Result.CANCELLED, 1)
    assert run.lines() == ENDED[:1]
    assert set(run.states().values()) == {"failed"}
    assert alps.leftovers() == []
