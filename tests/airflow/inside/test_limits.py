"""How long a task waits for its job, and what becomes of a job that is not waited for any more."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import ExceptionRetryPolicy, RetryRule
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider import ending
from airflow_provider.detaching import AGAIN, BACK, LEFT
from airflow_provider.failures import JobCancelled, JobDetached, JobDetachedForGood
from dispatch_core.client import Client
from dispatch_core.record import Result
from tests.airflow.inside.conftest import (
    KEY,
    Deployment,
    StateStore,
    Try,
    carried_out,
    context,
    deferred,
    fired,
    made_again,
    resumed,
)

SOON = {"timeout": 3.0}


def lines(deployment: Deployment, key: str = KEY) -> list[str]:
    history = deployment.asked(lambda store: store.history(key))
    return [line for change in history for line in change.lines]


@pytest.mark.promise("A5")
@pytest.mark.parametrize(
    "options", [SOON, {"timeout": "3s"}, {"execution_timeout": timedelta(seconds=3)}, {**SOON, "deferrable": False}]
)
def test_a_timeout_is_a_committed_cancel(deployment: Deployment, options: dict[str, Any]) -> None:
    made = deployment.operator("sleep 60", **options)
    ti = Try()
    run = made.execute if options.get("deferrable") is False else lambda ctx: carried_out(made, ctx)
    with pytest.raises(JobCancelled, match="was cancelled: the timeout of its task is over"):
        run(context(ti))
    assert deployment.records()[0].settled
    assert ti.pushed["dispatch_result"]["outcome"] == "cancelled"
    assert len(deployment.read_lines()) <= 1


@pytest.mark.promise("A5")
def test_a_later_execution_timeout_does_not_lengthen_the_wait(deployment: Deployment) -> None:
    made = deployment.operator(timeout="1h", execution_timeout=timedelta(hours=2))
    until = deferred(made, context()).trigger.until
    assert until == pytest.approx(deferred(deployment.operator(timeout="1h"), context()).trigger.until, abs=60)


@pytest.mark.promise("A4")
def test_a_job_that_was_left_runs_on_and_a_retry_waits_for_it_again(deployment: Deployment) -> None:
    ti, states = Try(max_tries=1), StateStore()
    script = f"until [ -e {deployment.folder}/go ]; do sleep 0.1; done"
    made = deployment.operator(script, on_timeout="detach", retries=1, **SOON)
    with pytest.raises(JobDetachedForGood, match="goes on without it") as raised:
        carried_out(made, context(ti, states))
    assert isinstance(raised.value, AirflowFailException)
    assert raised.value.key == KEY
    assert ti.pushed["dispatch_result"]["outcome"] is None
    (record,) = deployment.records()
    assert (record.outcome, lines(deployment).count(LEFT)) == (None, 1)
    second = context(Try(max_tries=1, try_number=2), states)
    again = deferred(deployment.operator(script, retries=1), second)
    assert again.trigger.uid == record.uid
    assert lines(deployment)[-1] == BACK
    (deployment.folder / "go").touch()
    made.timeout = None
    assert carried_out(made, second)["outcome"] == "succeeded"
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("A5")
def test_a_kill_leaves_alone_what_its_task_has_left(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger that runs twice is killed once its task has failed; and the task's next try is one to be killed."""
    monkeypatch.setattr(ending, "task_state", lambda instance: "failed")
    made = deployment.operator("sleep 60", on_timeout="detach", **SOON)
    waiting = deferred(made, context())
    with pytest.raises(JobDetached):
        carried_out(made, context())
    asyncio.run(made_again(waiting.trigger).on_kill())
    assert deployment.records()[0].outcome is None
    again = deferred(made, context(Try(try_number=2)))
    asyncio.run(made_again(again.trigger).on_kill())
    (record,) = deployment.records()
    assert record.outcome is not None
    assert record.outcome.result is Result.CANCELLED


@pytest.mark.promise("A4")
def test_the_trigger_of_an_earlier_try_leaves_nothing(deployment: Deployment) -> None:
    """Its triggerer was only slow: when its time is over, a later try waits for the job."""
    script = f"until [ -e {deployment.folder}/go ]; do sleep 0.1; done"
    made = deployment.operator(script, on_timeout="detach", retries=1, **SOON)
    first = deferred(made, context(Try(max_tries=1)))
    second = context(Try(max_tries=1, try_number=2))
    again = deferred(deployment.operator(script, retries=1), second)
    assert lines(deployment)[-1] == AGAIN
    asyncio.run(fired(made_again(first.trigger)))
    assert LEFT not in lines(deployment)
    (deployment.folder / "go").touch()
    event = asyncio.run(fired(made_again(again.trigger)))
    assert resumed(made, again, second, event)["outcome"] == "succeeded"
    assert deployment.read_lines() == ["1 1 start"]


def test_an_earlier_try_that_comes_late_takes_nothing_from_a_later_one(deployment: Deployment) -> None:
    """A worker that Airflow has given up goes on as an orphan, beside the next try."""
    script = f"until [ -e {deployment.folder}/go ]; do sleep 0.1; done"
    made = deployment.operator(script, on_timeout="detach", retries=1, **SOON)
    second = context(Try(max_tries=1, try_number=2))
    waiting = deferred(made, second)
    deferred(deployment.operator(script, retries=1), context(Try(max_tries=1)))
    assert AGAIN not in lines(deployment)
    event = asyncio.run(fired(made_again(waiting.trigger)))
    assert LEFT in lines(deployment)
    with pytest.raises(JobDetached):
        resumed(made, waiting, second, event)


def test_who_has_not_left_a_job_goes_on_waiting_for_it(deployment: Deployment) -> None:
    """Another task of the same key has; what the event of this one says is not believed."""
    script = f"until [ -e {deployment.folder}/go ]; do sleep 0.1; done"
    leaves = deployment.operator(script, key="nightly", on_timeout="detach", **SOON)
    stays = deployment.operator(script, key="nightly", task_id="other")
    waiting = deferred(stays, context(Try(task_id="other")))
    with pytest.raises(JobDetached):
        carried_out(leaves, context())
    with pytest.raises(type(waiting)):
        resumed(stays, waiting, context(Try(task_id="other")), {"key": "nightly", "uid": waiting.trigger.uid})


@pytest.mark.promise("A5")
def test_a_clear_cancels_a_job_that_was_left(deployment: Deployment) -> None:
    states = StateStore()
    made = deployment.operator("sleep 60", on_timeout="detach", **SOON)
    with pytest.raises(JobDetached):
        carried_out(made, context(Try(), states))
    waiting = deferred(made, context(Try(try_number=2, max_tries=1), states, cleared=1))
    assert waiting.method_name == "execute_after"
    assert waiting.trigger.until is None, "the earlier job is waited for until it is gone"
    assert deployment.records()[0].outcome is not None


def test_a_retry_policy_may_have_it_waited_for_again(deployment: Deployment) -> None:
    policy = ExceptionRetryPolicy(rules=[RetryRule(exception=JobDetached)])
    made = deployment.operator("sleep 60", on_timeout="detach", retry_policy=policy, **SOON)
    with pytest.raises(JobDetached) as raised:
        carried_out(made, context())
    assert not isinstance(raised.value, AirflowFailException)


def test_the_bound_is_kept_where_the_event_is_not_believed(deployment: Deployment) -> None:
    made = deployment.operator("sleep 60", timeout="1h")
    waiting = deferred(made, context())
    with pytest.raises(type(waiting)) as again:
        resumed(made, waiting, context(), {"key": KEY, "uid": waiting.trigger.uid})
    assert again.value.trigger.until == waiting.trigger.until


@pytest.mark.promise("P2")
def test_a_cancel_is_final_whatever_a_policy_says(deployment: Deployment) -> None:
    policy = ExceptionRetryPolicy(rules=[RetryRule(exception=Exception)])
    made = deployment.operator("sleep 60", retry_policy=policy, retries=3)
    waiting = deferred(made, context(Try(max_tries=3)))
    deployment.asked(lambda store: Client(store, "person ann").cancel(KEY, reason="enough"))
    with pytest.raises(JobCancelled) as raised:
        resumed(made, waiting, context(Try(max_tries=3)), {"key": KEY, "uid": waiting.trigger.uid})
    assert isinstance(raised.value, AirflowFailException)
