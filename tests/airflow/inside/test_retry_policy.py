"""A retry policy beside a job: what it sees, and what a try that it allows does."""

from typing import Any

import pytest
from airflow.sdk import ExceptionRetryPolicy, RetryPolicy, RetryRule
from airflow.sdk.definitions.retry_policy import RetryAction, RetryDecision
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider.failures import JobFailed, JobFailedForGood
from dispatch_core.plan import Cause, Plan
from tests.airflow.inside.conftest import KEY, Deployment, StateStore, Try, carried_out, context, deferred

RETRY = ExceptionRetryPolicy(rules=[RetryRule(exception=JobFailed)])


class ByExitCode(RetryPolicy):
    """What a DAG's author may write."""

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        if isinstance(exception, JobFailed) and exception.cause is Cause.EXIT and exception.exit_code == 75:
            return RetryDecision.retry(reason="exit code 75")
        return RetryDecision.fail()


@pytest.mark.promise("A4")
def test_a_policy_sees_how_the_job_failed(deployment: Deployment) -> None:
    for code, action in ((75, RetryAction.RETRY), (3, RetryAction.FAIL)):
        made = deployment.operator(f"exit {code}", retry_policy=ByExitCode(), retries=2, dag=None)
        with pytest.raises(JobFailed) as raised:
            carried_out(made, context(Try(max_tries=2, run_id=f"run-{code}")))
        assert not isinstance(raised.value, AirflowFailException), "Airflow would not ask the policy"
        assert ByExitCode().evaluate(raised.value, 1, 2).action is action


@pytest.mark.promise("A4")
def test_without_a_policy_a_failed_job_is_final(deployment: Deployment) -> None:
    with pytest.raises(JobFailedForGood) as raised:
        carried_out(deployment.operator("exit 75", retries=0), context())
    assert isinstance(raised.value, AirflowFailException)
    assert isinstance(raised.value, JobFailed)


@pytest.mark.promise("A4")
def test_a_policy_and_not_a_rule_made_of_retries_says_how_often(deployment: Deployment) -> None:
    with pytest.raises(JobFailed):
        carried_out(deployment.operator("exit 1", retry_policy=RETRY, retries=3), context(Try(max_tries=3)))
    (record,) = deployment.records()
    assert (record.plan, len(record.submissions)) == (Plan(), 1)


@pytest.mark.promise("A4")
def test_the_try_that_a_policy_asks_for_runs_a_new_job(deployment: Deployment) -> None:
    states = StateStore()
    script = f"[ -e {deployment.folder}/mended ]"
    made = deployment.operator(script, retry_policy=RETRY, retries=2)
    with pytest.raises(JobFailed):
        carried_out(made, context(Try(max_tries=2), states))
    (deployment.folder / "mended").touch()
    second = Try(max_tries=2, try_number=2)
    told = carried_out(deployment.operator(script, retry_policy=RETRY, retries=2), context(second, states))
    assert (told["key"], told["outcome"]) == (KEY[:-1] + "1", "succeeded")
    assert len(deployment.records()) == 2
    cleared = Try(max_tries=4, try_number=3)
    third = deferred(deployment.operator(script, retry_policy=RETRY, retries=2), context(cleared, states, cleared=1))
    assert third.trigger.key == KEY[:-1] + "2"


@pytest.mark.promise("A4")
def test_a_worker_lost_before_the_new_job_ended_finds_it_again(deployment: Deployment) -> None:
    states = StateStore()
    made = deployment.operator("exit 1", retry_policy=RETRY, retries=3)
    with pytest.raises(JobFailed):
        carried_out(made, context(Try(max_tries=3), states))
    second = deferred(made, context(Try(max_tries=3, try_number=2), states))
    third = deferred(made, context(Try(max_tries=3, try_number=3), states))
    assert (second.trigger.key, third.trigger.uid) == (KEY[:-1] + "1", second.trigger.uid)


def test_a_key_of_its_own_has_one_job_whatever_a_policy_says(deployment: Deployment) -> None:
    made = deployment.operator("exit 1", key="nightly", retry_policy=RETRY, retries=3)
    with pytest.raises(JobFailedForGood):
        carried_out(made, context(Try(max_tries=3)))


def test_a_task_tried_again_by_a_worker_given_up_does_nothing(deployment: Deployment) -> None:
    """The failed job is the earlier one of two by then."""
    states = StateStore()
    made = deployment.operator("exit 1", retry_policy=RETRY, retries=3)
    with pytest.raises(JobFailed):
        carried_out(made, context(Try(max_tries=3), states))
    deferred(made, context(Try(max_tries=3, try_number=2), states))
    with pytest.raises(AirflowFailException, match="tried again, and has job"):
        made.execute(context(Try(max_tries=3)))
    assert len(deployment.records()) == 2
