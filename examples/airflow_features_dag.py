"""What a task of dispatch can say, one thing each, on the local scheduler.

`prepare` is a Python function that runs as a job. `train` is a job for each seed, with a plan that is filled in when
the task runs, and goes on as soon as its job has an outcome. `evaluate` has no plan: `retries` and `retry_delay` become
one rule. `publish` waits at most so long, and leaves its job running then. `report` waits in its worker, and a retry
policy says after which exit code another job is worth it. Set AIRFLOW_CONN_DISPATCH_DEFAULT for the triggerer and the
workers.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, RetryPolicy, task
from airflow.sdk.definitions.retry_policy import RetryDecision

from airflow_provider.failures import JobFailed
from airflow_provider.operator import DispatchOperator

PLAN = """
rules:
  - {name: node, when: {cause: [node_failure, preempted]}, do: resubmit, budget: {{ params.budget }}, delay: 10s}
  - {name: memory, when: {cause: out_of_memory}, do: resubmit, budget: 1, changes: {memory_factor: 2}}
"""


class TemporaryFailure(RetryPolicy):
    """Another job after exit code 75, as sysexits.h calls it; anything else is final."""

    def evaluate(self, exception, try_number, max_tries, context=None):
        if isinstance(exception, JobFailed) and exception.exit_code == 75:
            return RetryDecision.retry(timedelta(minutes=1), reason="the job failed for a while only")
        return RetryDecision.fail()


with DAG("dispatch_features", schedule=None, params={"budget": 2, "folder": "/tmp"}) as dag:  # noqa: S108 - an example

    @task.dispatch(time_limit="10m")
    def prepare(folder: str, count: int) -> None:
        import json
        from pathlib import Path

        Path(folder, "seeds.json").write_text(json.dumps(list(range(count))))
        print(f"{count} seeds are written")

    train = DispatchOperator.partial(
        task_id="train",
        command=["bash", "-c", "echo training with seed $SEED"],
        spec={"memory": "500MiB"},
        plan=PLAN,
        wait_for="outcome",
    ).expand(environment=[{"SEED": "1"}, {"SEED": "2"}])

    evaluate = DispatchOperator(
        task_id="evaluate",
        spec="evaluate.yaml",
        retries=3,
        retry_delay=timedelta(seconds=30),
        retry_exponential_backoff=2,
        max_retry_delay=timedelta(minutes=10),
    )

    publish = DispatchOperator(
        task_id="publish",
        command=["bash", "-c", "echo published"],
        timeout="6h",
        on_timeout="detach",
        log_lines=20,
    )

    report = DispatchOperator(
        task_id="report",
        command=["bash", "-c", "echo reported"],
        deferrable=False,
        retries=2,
        retry_policy=TemporaryFailure(),
    )

    prepare("{{ params.folder }}", count=2) >> train >> evaluate >> publish >> report
