"""The operator: one job for a task, whatever becomes of its workers, and how it tells the job's end."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from airflow_provider import ending, hook, operator
from airflow_provider.detaching import AGAIN
from airflow_provider.failures import JobCancelled, JobChanged, JobFailed, JobFailedForGood
from airflow_provider.operator import DispatchOperator
from airflow_provider.submission import RETRIES
from dispatch_core.client import Client
from dispatch_core.errors import BadInput, StoreUnavailable
from dispatch_core.plan import Action, Cause, Delay, Plan, Rule, When
from dispatch_core.record import Result
from dispatch_core.retries import RETRIED
from dispatch_core.stores import migrations
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


@pytest.mark.promise("A1")
def test_a_job_from_its_submission_to_its_result(deployment: Deployment) -> None:
    ti = Try()
    found = carried_out(deployment.operator(), context(ti))
    (record,) = deployment.records()
    assert found == {
        "key": KEY,
        "uid": record.uid,
        "outcome": "succeeded",
        "cause": None,
        "exit_code": 0,
        "submissions": 1,
        "runs": 1,
        "objects": [record.objects[0].id],
    }
    json.dumps(found)
    link = ti.pushed.pop("_link_dispatch_job")
    assert link == f"/dispatch/job?{urlencode({'key': KEY, 'uid': record.uid})}", "there before the task is deferred"
    assert ti.pushed == {"dispatch_job": {"key": KEY, "uid": record.uid}, "dispatch_result": found}
    assert record.settled
    assert deployment.read_lines() == ["1 1 start"]


@pytest.mark.promise("A4")
def test_which_try_it_was_is_in_the_records_history(deployment: Deployment) -> None:
    ti = Try(try_number=3, max_tries=4)
    deferred(deployment.operator(retries=2), context(ti, StateStore()))
    (created,) = deployment.asked(lambda store: store.history(KEY[:-1] + "2"))
    assert f"try 3, generation 2, max_tries 4, retries 2, {ti.id}" in created.actor


@pytest.mark.promise("A4")
def test_retries_become_one_rule_and_the_jobs_end_is_final_for_airflow(deployment: Deployment) -> None:
    made = deployment.operator("exit 3", retries=1, retry_delay=timedelta(seconds=0.2))
    with pytest.raises(JobFailedForGood, match="exit code 3; by dispatch:default, after 2 submissions") as raised:
        carried_out(made, context(Try(max_tries=1)))
    assert isinstance(raised.value, AirflowFailException)
    assert (raised.value.cause, raised.value.exit_code, raised.value.key) == (Cause.EXIT, 3, KEY)
    assert deployment.read_lines() == ["1 1 start", "2 1 start"]
    assert [unit.rule for unit in deployment.records()[0].budget] == [RETRIES]


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        ({"retry_delay": timedelta(seconds=90)}, Delay(seconds=90)),
        ({"retry_delay": 90, "retry_exponential_backoff": 2}, Delay(seconds=90, factor=2)),
        (
            {"retry_delay": 90, "retry_exponential_backoff": 5, "max_retry_delay": timedelta(minutes=10)},
            Delay(seconds=90, factor=5, cap_seconds=600),
        ),
    ],
)
def test_the_delays_of_retries(deployment: Deployment, options: dict[str, Any], delay: Delay) -> None:
    deferred(deployment.operator(retries=3, **options), context(Try(max_tries=3)))
    rule = Rule(name=RETRIES, when=When(cause=RETRIED), do=Action.RESUBMIT, budget=3, delay=delay)
    assert deployment.records()[0].plan == Plan(rules=(rule,))


def test_no_retries_and_no_plan_is_no_rule(deployment: Deployment) -> None:
    deferred(deployment.operator(), context())
    assert deployment.records()[0].plan == Plan()


def test_a_plan_in_the_words_of_a_job_file(deployment: Deployment) -> None:
    plan = {"rules": [{"name": "node", "when": {"cause": "node_failure"}, "do": "resubmit", "budget": 2}]}
    deferred(deployment.operator(plan=plan, retries=5), context(Try(max_tries=5)))
    rule = Rule(name="node", when=When(cause=(Cause.NODE_FAILURE,)), do=Action.RESUBMIT, budget=2)
    assert deployment.records()[0].plan == Plan(rules=(rule,))


def test_a_spec_in_the_words_of_a_job_file(deployment: Deployment) -> None:
    spec = {"command": ["true"], "time_limit": "2h", "environment": {"SEED": "1"}}
    deferred(DispatchOperator(task_id="train", spec=spec), context())
    (record,) = deployment.records()
    assert (record.spec.command, record.spec.time_limit_seconds) == (("true",), 7200.0)
    assert record.spec.environment == {"SEED": "1"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give command, or spec"),
        ({"command": ["true"], "spec": {"command": ["true"]}}, "command is given twice"),
        ({"spec": {"memory": "1GiB"}}, "command is missing"),
        ({"command": []}, "command"),
        ({"command": ["true"], "time_limit": "soon"}, "soon"),
        ({"command": ["true"], "environment": {"A B": "1"}}, "A B"),
        ({"spec": {"command": ["true"], "time_limit": "1h"}, "time_limit": "2h"}, "time_limit is given twice"),
        ({"command": ["true"], "timeout": "soon"}, "soon"),
        ({"command": ["true"], "wait_for": "end"}, "wait_for is 'end'; give outcome or settled"),
        ({"command": ["true"], "on_timeout": "wait"}, "on_timeout is 'wait'; give cancel or detach"),
        ({"command": ["true"], "log_lines": -1}, "log_lines is -1"),
        ({"command": ["true"], "plan": "rules: [{name: x}]"}, "is missing"),
        ({"command": ["true"], "plan": "rules: ["}, "plan:1"),
        ({"command": ["true"], "plan": "just text"}, "write a mapping"),
        ({"command": ["true"], "plan": 5}, "plan: it is a int"),
        ({"command": ["true"], "scheduler": ""}, "one of the two"),
        ({"command": ["true"], "scheduler": "alps", "scheduler_conn_id": "alps"}, "one of the two"),
        ({"command": ["true"], "plan": {"rules": [{"name": "x"}]}}, "is missing"),
    ],
)
def test_a_dag_with_a_wrong_task_does_not_parse(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        DispatchOperator(task_id="train", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"time_limit": "{{ params.wrong }}"},
        {"plan": {"rules": [{"name": "{{ params.wrong }}", "when": {"cause": "{{ params.wrong }}"}, "do": "hold"}]}},
        {"plan": "rules: [{name: x, when: {cause: '{{ params.wrong }}'}, do: hold}]"},
        {"timeout": "{{ params.wrong }}"},
    ],
)
def test_what_a_template_makes_wrong_is_not_tried_again(deployment: Deployment, options: dict[str, Any]) -> None:
    made = DispatchOperator(task_id="train", command=["true"], **options)
    ctx = {**context(), "params": {"wrong": "not so"}}
    made.render_template_fields(ctx)
    with pytest.raises(AirflowFailException, match="not so"):
        made.execute(ctx)
    assert deployment.records() == []


def test_a_missing_connection_is_tried_again(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_DISPATCH_DEFAULT")
    with pytest.raises(BadInput, match="is not defined here"):
        deployment.operator().execute(context())


def test_a_secret_that_cannot_be_read_stops_the_job_before_it_is_written(deployment: Deployment) -> None:
    spec = {"command": ["true"], "secret_environment": {"TOKEN": {"file": "/nowhere"}}}
    with pytest.raises(BadInput, match="the secret in file '/nowhere' cannot be read"):
        DispatchOperator(task_id="train", spec=spec).execute(context())
    assert deployment.records() == []


@pytest.mark.promise("A4")
def test_a_retry_after_a_lost_worker_attaches_and_spends_nothing(deployment: Deployment) -> None:
    states = StateStore()
    first = deferred(deployment.operator(retries=2), context(Try(max_tries=2), states))
    again = deferred(deployment.operator(retries=2), context(Try(max_tries=2, try_number=2), states))
    assert again.trigger.uid == first.trigger.uid
    (record,) = deployment.records()
    assert (record.submissions, record.budget) == ((), ())
    history = deployment.asked(lambda store: store.history(record.key))
    assert [change.lines for change in history[1:]] == [(AGAIN,)], "it changes nothing"


@pytest.mark.promise("P4")
def test_two_executions_at_once_make_one_job(deployment: Deployment) -> None:
    together = threading.Barrier(4)

    def run(number: int) -> str:
        made, ctx = deployment.operator(), context(Try(try_number=number))
        together.wait()
        return str(deferred(made, ctx).trigger.uid)

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(run, range(1, 5)))) == 1
    assert len(deployment.records()) == 1


def test_mapped_instances_are_jobs_of_their_own(deployment: Deployment) -> None:
    uids = {deferred(deployment.operator(), context(Try(map_index=index))).trigger.uid for index in range(3)}
    assert len(uids) == 3


def test_a_settled_job_is_told_at_once(deployment: Deployment) -> None:
    made = deployment.operator(retries=1)
    first = carried_out(made, context(Try(max_tries=1)))
    assert made.execute(context(Try(max_tries=1, try_number=2))) == first


def test_a_job_that_failed_is_told_at_once(deployment: Deployment) -> None:
    made = deployment.operator("exit 1")
    with pytest.raises(JobFailed):
        carried_out(made, context())
    with pytest.raises(JobFailed):
        made.execute(context())


@pytest.mark.promise("A4")
def test_another_command_at_a_retry_is_a_clear_error(deployment: Deployment) -> None:
    deferred(deployment.operator("sleep 1"), context())
    with pytest.raises(JobChanged, match="clear the task") as raised:
        deployment.operator("sleep 2").execute(context(Try(try_number=2)))
    assert isinstance(raised.value, AirflowFailException)
    assert f"dispatch cancel {KEY}" in str(raised.value)
    assert deployment.records()[0].outcome is None


def test_edited_retries_change_nothing_of_a_job_that_runs(deployment: Deployment) -> None:
    states = StateStore()
    deferred(deployment.operator(retries=1), context(Try(max_tries=1), states))
    deferred(deployment.operator(retries=5), context(Try(max_tries=1, try_number=2), states))
    (record,) = deployment.records()
    assert record.plan.rules[0].budget == 1


@pytest.mark.promise("A5")
def test_a_clear_cancels_the_earlier_job_and_waits_until_it_is_gone(deployment: Deployment) -> None:
    states = StateStore()
    made = deployment.operator("sleep 60")
    first = deferred(made, context(Try(), states))

    async def run_for_a_while() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await fired(made_again(first.trigger))

    asyncio.run(run_for_a_while())
    assert deployment.read_lines() == ["1 1 start"]

    cleared = context(Try(try_number=2, max_tries=1), states, cleared=1)
    again = deployment.operator("exit 0")
    waiting = deferred(again, cleared)
    (old,) = deployment.records()
    assert old.outcome is not None
    assert (old.outcome.result, old.outcome.message) == (Result.CANCELLED, "its task was cleared in Airflow")
    assert (waiting.method_name, waiting.trigger.wait_for) == ("execute_after", "settled")

    event = asyncio.run(fired(made_again(waiting.trigger)))
    with pytest.raises(TaskDeferred) as raised:
        resumed(again, waiting, cleared, event)
    records = {record.key: record for record in deployment.records()}
    assert records[KEY].settled
    assert records[KEY[:-1] + "1"].uid == raised.value.trigger.uid


@pytest.mark.promise("P2")
def test_a_worker_that_was_given_up_before_a_clear_makes_no_job(deployment: Deployment) -> None:
    deferred(deployment.operator(), context(Try(try_number=2, max_tries=1), StateStore()))
    with pytest.raises(JobChanged, match="this task was cleared"):
        deployment.operator().execute(context(Try()))
    assert [record.key for record in deployment.records()] == [KEY[:-1] + "1"]


def test_a_given_key_has_no_generations(deployment: Deployment) -> None:
    made = deployment.operator(key="nightly")
    assert deferred(made, context()).trigger.key == "nightly"
    assert deferred(made, context(Try(try_number=2, max_tries=1))).trigger.key == "nightly"
    assert len(deployment.records()) == 1


def test_a_cancelled_job_is_a_failure_of_its_own(deployment: Deployment) -> None:
    made = deployment.operator("sleep 60")
    raised = deferred(made, context())
    deployment.asked(lambda store: Client(store, "person ann").cancel(KEY, reason="no longer needed"))
    event = asyncio.run(fired(made_again(raised.trigger)))
    with pytest.raises(JobCancelled, match="was cancelled: no longer needed; by person ann"):
        resumed(made, raised, context(), event)
    assert deployment.read_lines() == []


def test_an_event_alone_is_not_believed(deployment: Deployment) -> None:
    made = deployment.operator("sleep 60")
    raised = deferred(made, context())
    with pytest.raises(TaskDeferred):
        resumed(made, raised, context(), {"key": KEY, "uid": raised.trigger.uid, "outcome": "succeeded"})


def test_a_record_that_is_gone_is_said_so(deployment: Deployment) -> None:
    made = deployment.operator()
    raised = deferred(made, context())
    asyncio.run(migrations.downgrade(deployment.url, "base"))
    asyncio.run(migrations.upgrade(deployment.url))
    event = asyncio.run(fired(made_again(raised.trigger)))
    with pytest.raises(AirflowException, match="there is no job"):
        resumed(made, raised, context(), event)


def test_a_worker_waits_for_a_store_that_is_away(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    away = deployment.folder / "away.db"
    (deployment.folder / "jobs.db").rename(away)
    monkeypatch.setattr(operator, "AGAIN_SECONDS", (0.3,) * 10)
    back = threading.Timer(0.5, lambda: away.rename(deployment.folder / "jobs.db"))
    back.start()
    deferred(deployment.operator(), context())
    back.join()


def test_tables_that_are_missing_are_a_clear_error(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty.db").touch()
    extra = {"url": f"sqlite:///{tmp_path}/empty.db"}
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_DEFAULT", json.dumps({"conn_type": "dispatch", "extra": extra}))
    monkeypatch.setattr(operator, "AGAIN_SECONDS", ())
    hook.forget("dispatch_default")
    with pytest.raises(StoreUnavailable, match="airflow db migrate"):
        deployment.operator().execute(context())


@pytest.mark.parametrize(("state", "cancelled"), [("failed", True), ("running", False)])
def test_a_worker_that_is_ended_cancels_only_if_the_task_has_ended(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, state: str, cancelled: bool
) -> None:
    monkeypatch.setattr(ending, "task_state", lambda instance: state)
    made = deployment.operator()
    made.on_kill()
    deferred(made, context())
    (record,) = deployment.records()
    assert (record.outcome is not None) is cancelled
