"""The task in a real Prefect: its row in the server's own database, a killed flow process, a cancelled flow run.

The flow runs of the later tests are started with the first, so that they come up while it runs.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.prefect.runs import BESIDE, Run, check_cancelled, is_alive
from tests.prefect.server import Prefect, until


@pytest.fixture(scope="module")
def runs(prefect: Prefect, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    folder = tmp_path_factory.mktemp("runs")
    wanted = {"killed": "training", "cancelled": "training", "failed": "failing"}
    started = {name: Run(prefect, flow, folder / name) for name, flow in wanted.items()}
    yield started
    for one in started.values():
        one.end()


@pytest.mark.promise("F1")
@pytest.mark.promise("A2")
def test_the_jobs_row_stands_beside_its_flow_run(prefect: Prefect, runs: dict[str, Run]) -> None:
    ran = prefect.run(prefect.environment.python, "examples/prefect_flow.py")
    assert ran.returncode == 0, ran.stderr
    assert "has succeeded after 1 run(s)" in ran.stdout
    (flow_run,) = prefect.rows(
        "SELECT flow_run.id FROM flow_run JOIN flow ON flow.id = flow_id WHERE flow.name = 'nightly'"
    )
    (row,) = prefect.rows(BESIDE, flow_run["id"])
    assert row == {
        "key": f"prefect/{flow_run['id']}/train",
        "settled": 1,
        "result": "succeeded",
        "state_type": "COMPLETED",
        "run_count": 1,
    }
    told = [entry["message"] for entry in prefect.logs(flow_run["id"])]
    assert {"the job has succeeded, by dispatch:default", "settled"} <= set(told)


@pytest.mark.promise("F1")
def test_a_database_that_is_not_the_servers_is_refused(prefect: Prefect, tmp_path: Path) -> None:
    """A program with the server's address, and without its database, has an empty one of its own."""
    ran = prefect.run(prefect.environment.python, "examples/prefect_flow.py", env={"PREFECT_HOME": str(tmp_path)})
    assert ran.returncode != 0
    assert "is not the Prefect server's own" in ran.stderr
    assert not (tmp_path / "prefect.db").exists()


@pytest.mark.promise("F1")
@pytest.mark.promise("A4")
def test_a_killed_flow_process_run_again_finds_its_job(
    prefect: Prefect, runs: dict[str, Run], request: pytest.FixtureRequest
) -> None:
    run = runs["killed"]
    run.until_it_runs()
    os.kill(run.processes[0], signal.SIGKILL)
    run.until_state("CRASHED")
    prefect.set_state(run.id, "SCHEDULED", "AwaitingRetry")
    until(lambda: len(run.processes) == 2, "the flow run is run again")
    attached = run.record.revision
    (run.folder / "go").touch()
    run.until_state("COMPLETED")
    (row,) = prefect.rows(BESIDE, run.id)
    assert (row["settled"], row["result"], row["run_count"]) == (1, "succeeded", 2)
    assert [word for word in run.words("lines") if not word.isdecimal()] == ["began", "ended"]
    record = run.record
    assert (len(record.submissions), record.budget) == (1, ())
    assert record.revision > attached
    until(lambda: not run.leftovers(), "nothing of it is alive", 30)
    run.tell(request, "flow process ended with -9, run again")


@pytest.mark.promise("F1")
@pytest.mark.promise("A5")
def test_a_cancelled_flow_run_cancels_its_job(
    prefect: Prefect, runs: dict[str, Run], request: pytest.FixtureRequest
) -> None:
    run = runs["cancelled"]
    run.until_it_runs()
    prefect.set_state(run.id, "CANCELLING", "Cancelling")
    run.until_state("CANCELLED")
    check_cancelled(prefect, run)
    run.tell(request, "cancelled, awaited")


@pytest.mark.promise("F1")
@pytest.mark.promise("A4")
def test_retries_are_the_jobs_not_the_tasks(prefect: Prefect, runs: dict[str, Run]) -> None:
    run = runs["failed"]
    run.until_state("FAILED")
    assert run.words("lines") == ["1", "2", "3"]
    assert len(run.record.submissions) == 3
    query = "SELECT state_type, run_count FROM task_run WHERE flow_run_id = ?"
    until(lambda: prefect.rows(query, run.id) == [{"state_type": "FAILED", "run_count": 1}], "one try of the task")


def is_run_again(run: Run) -> bool:
    """Asks for it whenever the flow run is said to have crashed: first its process says so, then the runner may too."""
    if run.prefect.state(run.id) == "CRASHED":
        run.prefect.set_state(run.id, "SCHEDULED", "AwaitingRetry")
    return len(run.processes) == 2


@pytest.mark.long
@pytest.mark.promise("F1")
def test_a_process_that_has_to_end_leaves_its_job(
    prefect: Prefect, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Evicted, not cancelled: only the flow run's state tells. The rerun makes another subflow run, with this job."""
    run = Run(prefect, "nesting", tmp_path / "evicted")
    try:
        run.until_it_runs()
        os.kill(run.processes[0], signal.SIGTERM)
        run.until_state("CRASHED")
        assert is_alive(run.payloads[0])
        assert run.record.outcome is None
        until(lambda: not is_alive(run.processes[0]), "its process has ended", 60)
        until(lambda: is_run_again(run), "the flow run is run again")
        (run.folder / "go").touch()
        run.until_state("COMPLETED")
        assert len(run.payloads) == 1
        calls = "SELECT id FROM flow_run WHERE parent_task_run_id IN (SELECT id FROM task_run WHERE flow_run_id = ?)"
        assert len(prefect.rows(calls, run.id)) == 2
        until(lambda: not run.leftovers(), "nothing of it is alive", 30)
        run.tell(request, "flow process told to end (SIGTERM), run again")
    finally:
        run.end()


@pytest.mark.long
@pytest.mark.promise("F1")
def test_the_hook_cancels_what_was_submitted(prefect: Prefect, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Prefect tells a submitted task nothing: it asks, and the hook looks for what is left."""
    run = Run(prefect, "submitting", tmp_path / "submitted")
    try:
        run.until_it_runs()
        prefect.set_state(run.id, "CANCELLING", "Cancelling")
        run.until_state("CANCELLED")
        check_cancelled(prefect, run)
        run.tell(request, "cancelled, .submit()ed, with the hook")
    finally:
        run.end()


SAVED = """
import asyncio
from prefect_collection.blocks import KubernetesCluster, SlurmCluster
from prefect_collection.connections import cluster_of
from prefect_collection.job_block import DispatchJob

async def main():
    await SlurmCluster(host="login.alps.example", user="ann", poll="4s").save("alps")
    cluster = await cluster_of("alps")
    print(cluster.name, cluster.ssh.user, cluster.ssh.host, cluster.poll_seconds)
    await KubernetesCluster(name="pods").save("pods")
    await DispatchJob(key="train", command=["true"], cluster=await KubernetesCluster.aload("pods")).save("in-pods")
    await SlurmCluster(name="nodes").save("nodes")
    await DispatchJob(key="train", command=["true"], cluster=await SlurmCluster.aload("nodes")).save("on-nodes")
    for job in ("in-pods", "on-nodes"):
        print((await DispatchJob.aload(job)).cluster.described())

asyncio.run(main())
"""


def test_a_cluster_is_saved_as_a_block_and_found_by_its_name(prefect: Prefect) -> None:
    ran = prefect.run(prefect.environment.python, "-c", SAVED)
    assert ran.returncode == 0, ran.stderr
    slurm, pods, nodes = ran.stdout.splitlines()[-3:]
    assert slurm == "alps ann login.alps.example 4.0"
    assert pods.startswith("KubernetesCluster(name='pods', namespace='default'")
    assert nodes.startswith("SlurmCluster(name='nodes', ")
