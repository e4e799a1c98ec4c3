"""DAGs of the kills: jobs that tell when they start, end and are stopped, and which run was beside them.

Airflow reads this file, in its own environment: the core's tests only copy it. FOLDER is theirs and the jobs'.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider.janitor import DispatchJanitorOperator
from airflow_provider.operator import DispatchOperator

FOLDER = os.environ.get("DISPATCH_TEST_FOLDER", "/nowhere")

PAYLOAD = """
tell() { echo "$DISPATCH_KEY $DISPATCH_SUBMISSION $DISPATCH_RUN $1 $2" >> "$LINES"; }
trap 'tell stopped $$; exit 143' TERM
for other in $(awk '$4 == "start" { print $5 }' "$LINES" 2>/dev/null); do
    kill -0 "$other" 2>/dev/null && tell beside "$other"
done
tell start $$
until [ -e "$GO" ]; do sleep 0.2; done
tell end $$
"""

JOB = {
    "task_id": "job",
    "command": ["bash", "-c", PAYLOAD],
    "scheduler": "room",  # the local scheduler, with room for all of them at once
    "environment": {"LINES": f"{FOLDER}/{{{{ params.mark }}}}.runs", "GO": f"{FOLDER}/{{{{ params.mark }}}}.go"},
}


class DefersForSeconds(DispatchOperator):
    """Its deferral has a timeout, as Airflow counts them."""

    def defer(self, **options):
        return super().defer(**{**options, "timeout": timedelta(seconds=5)})


class BeginsTwice(DispatchOperator):
    """Its first try says who it is once it knows what it wants, and submits that when it is told to."""

    first = False

    def execute(self, context):
        self.first = context["ti"].try_number == 1
        return super().execute(context)

    def _in_store(self, work):
        told = Path(FOLDER, "begins")
        if not self.first:
            return super()._in_store(work)
        told.with_suffix(".new").write_text(f"{os.getpid()} {os.getppid()}")
        told.with_suffix(".new").rename(told)
        while not told.with_suffix(".go").exists():
            time.sleep(0.2)
        found = super()._in_store(work)
        told.with_suffix(".found").write_text(found.uid)
        return found


with DAG("kills", schedule=None, params={"mark": "kills"}):
    DispatchOperator(**JOB)

with DAG("kills_named", schedule=None, params={"mark": "kills_named"}):
    DispatchOperator(**JOB, key="named/{{ params.mark }}")

with DAG("kills_in_time", schedule=None, params={"mark": "kills_in_time"}, dagrun_timeout=timedelta(seconds=60)):
    DispatchOperator(**JOB)

with DAG("kills_deferral", schedule=None, params={"mark": "kills_deferral"}):
    DefersForSeconds(**JOB)

with DAG("kills_twice", schedule=None, params={"mark": "kills_twice"}):
    BeginsTwice(**JOB, retries=1, retry_delay=timedelta(seconds=1))

with DAG("kills_janitor", schedule=None):
    DispatchJanitorOperator(task_id="janitor", adopt_seconds=60, local=True)
