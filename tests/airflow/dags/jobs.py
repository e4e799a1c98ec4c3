"""DAGs for the end-to-end tests. A job appends a line when a run of it starts, waits for a file, and appends another.

Airflow reads this file, in its own environment: the core's tests only copy it. FOLDER is theirs and the jobs'.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, RetryPolicy
from airflow.sdk.definitions.retry_policy import RetryDecision

from airflow_provider.failures import JobFailed
from airflow_provider.operator import DispatchOperator

FOLDER = os.environ.get("DISPATCH_TEST_FOLDER", "/nowhere")

PAYLOAD = """
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> "$LINES"
until [ -e "$GO" ]; do sleep 0.2; done
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN end" >> "$LINES"
"""

COMMAND = ["bash", "-c", PAYLOAD]
ENVIRONMENT = {"LINES": f"{FOLDER}/{{{{ params.mark }}}}.lines", "GO": f"{FOLDER}/{{{{ params.mark }}}}.go"}


class StopsBeforeDeferring(DispatchOperator):
    """On its first try, says who it is once the record is there, and waits to be killed."""

    def defer(self, **options):
        told = Path(FOLDER, "stopped")
        if not told.exists():
            told.with_suffix(".new").write_text(f"{os.getpid()} {os.getppid()}")
            told.with_suffix(".new").rename(told)
            time.sleep(600)
        return super().defer(**options)


class OnExitCode75(RetryPolicy):
    """Another job where the last one asked for it."""

    def evaluate(self, exception, try_number, max_tries, context=None):
        if isinstance(exception, JobFailed) and exception.exit_code == 75:
            return RetryDecision.retry(timedelta(seconds=1), reason="the job asked for another one")
        return RetryDecision.fail(reason=f"cause {getattr(exception, 'cause', None)}")


with DAG("plain", schedule=None, params={"mark": "plain"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT)

with DAG("over_http", schedule=None, params={"mark": "over_http"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, dispatch_conn_id="dispatch_http")

with DAG("on_slurm", schedule=None, params={"mark": "on_slurm"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, scheduler="alps")

with DAG("on_kubernetes", schedule=None, params={"mark": "on_kubernetes"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, scheduler_conn_id="pods")

with DAG("lost_worker", schedule=None, params={"mark": "lost_worker"}):
    StopsBeforeDeferring(
        task_id="job", command=COMMAND, environment=ENVIRONMENT, retries=2, retry_delay=timedelta(seconds=1)
    )

with DAG("twenty", schedule=None, params={"mark": "twenty"}, max_active_tasks=64):
    DispatchOperator.partial(task_id="job", command=COMMAND).expand(
        environment=[{"LINES": f"{FOLDER}/twenty-{number}.lines", "GO": f"{FOLDER}/twenty.go"} for number in range(20)]
    )

with DAG("policy", schedule=None, params={"mark": "policy"}):
    DispatchOperator(
        task_id="job",
        command=["bash", "-c", 'echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> "$LINES"; exit "$CODE"'],
        environment={**ENVIRONMENT, "CODE": "{{ 75 if ti.try_number == 1 else 3 }}"},
        retries=3,
        retry_policy=OnExitCode75(),
    )

with DAG("marked", schedule=None, params={"mark": "marked"}):
    DispatchOperator(
        task_id="job",
        command=["bash", "-c", f'echo "the token is $TOKEN."; {PAYLOAD}exit 9'],
        environment=ENVIRONMENT,
        spec={"secret_environment": {"TOKEN": {"connection": "vault"}}},
    )

with DAG("marked_away", schedule=None, params={"mark": "marked_away"}):
    for name in ("uri", "url"):
        DispatchOperator(task_id=name, command=["true"], dispatch_conn_id=f"away_{name}")

with DAG("in_worker", schedule=None, params={"mark": "in_worker"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, deferrable=False)
