"""DAGs for the end-to-end tests. A job appends a line when a run of it starts, waits for a file, and appends another.

Airflow reads this file, in its own environment: the core's tests only copy it. FOLDER is theirs and the jobs'.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

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


with DAG("plain", schedule=None, params={"mark": "plain"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT)

with DAG("over_http", schedule=None, params={"mark": "over_http"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, dispatch_conn_id="dispatch_http")

with DAG("on_slurm", schedule=None, params={"mark": "on_slurm"}):
    DispatchOperator(task_id="job", command=COMMAND, environment=ENVIRONMENT, scheduler="alps")

with DAG("lost_worker", schedule=None, params={"mark": "lost_worker"}):
    StopsBeforeDeferring(
        task_id="job", command=COMMAND, environment=ENVIRONMENT, retries=2, retry_delay=timedelta(seconds=1)
    )

with DAG("fifty", schedule=None, params={"mark": "fifty"}, max_active_tasks=64):
    DispatchOperator.partial(task_id="job", command=COMMAND).expand(
        environment=[{"LINES": f"{FOLDER}/fifty-{number}.lines", "GO": f"{FOLDER}/fifty.go"} for number in range(50)]
    )
