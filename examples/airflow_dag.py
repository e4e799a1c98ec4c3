"""One long job under Airflow, on the local scheduler.

The task's job appends a line to the file that LINES names when a run of it starts and when it ends. If the host of a
run fails, the plan launches it again, at most twice; the task is deferred all the while, and no worker waits with it.
Set AIRFLOW_CONN_DISPATCH_DEFAULT for the triggerer and the workers to say where the records are.
"""

import os

from airflow.sdk import DAG

from airflow_provider.operator import DispatchOperator

PAYLOAD = """
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> "$LINES"
sleep "$SECONDS_TO_RUN"
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN end" >> "$LINES"
"""

with DAG("dispatch_example", schedule=None, params={"seconds": 20}) as dag:
    DispatchOperator(
        task_id="train",
        command=["bash", "-c", PAYLOAD],
        environment={
            "LINES": os.environ.get("LINES", "/tmp/dispatch-example-lines"),  # noqa: S108 - an example
            "SECONDS_TO_RUN": "{{ params.seconds }}",
        },
        time_limit="10m",
        plan={"rules": [{"name": "node", "when": {"cause": "node_failure"}, "do": "resubmit", "budget": 2}]},
    )
