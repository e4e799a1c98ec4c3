"""A task that waits in its worker: the same job, drained where the worker is ended."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider import ending, trigger
from airflow_provider.failures import JobFailedForGood
from dispatch_core.record import Result
from dispatch_core.stores.sql import SqlStore
from tests.airflow.inside.conftest import KEY, Deployment, StateStore, Try, context


def owner(deployment: Deployment) -> str | None:
    async def read(store: SqlStore) -> str | None:
        (job,) = await store.jobs()
        return job.owner

    found: str | None = deployment.asked(read)
    return found


def ended_meanwhile(work: Callable[[], Any], made: Any, deployment: Deployment) -> BaseException:
    """Run `work` in a thread, and end the worker once the job runs; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test judges it
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 20
    while not deployment.read_lines() and time.monotonic() < until:
        time.sleep(0.1)
    made.on_kill()
    thread.join(60)
    assert not thread.is_alive()
    assert raised
    return raised[0]


@pytest.mark.promise("A1")
def test_a_job_from_its_submission_to_its_result(deployment: Deployment) -> None:
    ti = Try()
    told = deployment.operator(deferrable=False).execute(context(ti))
    (record,) = deployment.records()
    assert (told["key"], told["outcome"], record.settled) == (KEY, "succeeded", True)
    assert ti.pushed["dispatch_result"] == told
    assert deployment.read_lines() == ["1 1 start"]


def test_a_job_that_fails(deployment: Deployment) -> None:
    ti = Try()
    with pytest.raises(JobFailedForGood):
        deployment.operator("exit 4", deferrable=False).execute(context(ti))
    assert (ti.pushed["dispatch_result"]["cause"], ti.pushed["dispatch_result"]["exit_code"]) == ("exit", 4)


@pytest.mark.promise("A4")
def test_a_worker_that_is_ended_leaves_the_job_to_the_next_try(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: "running")
    script = f"until [ -e {deployment.folder}/go ]; do sleep 0.1; done"
    states, made = StateStore(), deployment.operator(script, deferrable=False)
    error = ended_meanwhile(lambda: made.execute(context(Try(max_tries=1), states)), made, deployment)
    assert isinstance(error, AirflowException)
    assert "next try finds it" in str(error)
    assert owner(deployment) is None, "the lease is given up"
    (record,) = deployment.records()
    assert record.outcome is None
    (deployment.folder / "go").touch()
    second = context(Try(max_tries=1, try_number=2), states)
    told = deployment.operator(script, deferrable=False).execute(second)
    assert (told["uid"], told["outcome"]) == (record.uid, "succeeded")
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("A5")
def test_a_worker_that_is_ended_with_its_task_cancels_the_job(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: "failed")
    made = deployment.operator("sleep 60", deferrable=False)
    ended_meanwhile(lambda: made.execute(context()), made, deployment)
    (record,) = deployment.records()
    assert record.outcome is not None
    assert (record.outcome.result, record.outcome.message) == (Result.CANCELLED, "its task is failed in Airflow")


def test_a_worker_ended_before_it_waits_does_not_wait(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: "running")
    made = deployment.operator("sleep 60", deferrable=False)
    made.on_kill()
    with pytest.raises(AirflowException, match="was told to end"):
        made.execute(context())
    assert deployment.read_lines() == []


def test_a_clear_waits_for_the_earlier_job_in_the_worker_too(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: "running")
    states, made = StateStore(), deployment.operator("sleep 60", deferrable=False)
    ended_meanwhile(lambda: made.execute(context(Try(), states)), made, deployment)
    again = deployment.operator("exit 0", deferrable=False)
    told = again.execute(context(Try(try_number=2, max_tries=1), states, cleared=1))
    records = {record.key: record for record in deployment.records()}
    assert told["key"] == KEY[:-1] + "1"
    assert records[KEY].settled
    assert records[KEY].outcome.result is Result.CANCELLED
    assert not trigger._ending
