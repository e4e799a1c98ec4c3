"""The DAGs of the bench: as many jobs as it says, by dispatch and the usual way, each beside a meter."""

import os

from airflow.sdk import DAG
from metered import MeterOperator, UsualOperator

from airflow_provider.operator import DispatchOperator

FOLDER = os.environ.get("BENCH_FOLDER", "/nowhere")
JOBS = int(os.environ.get("BENCH_JOBS", "1"))

# Held until all are there, by a lock that the bench has; then for as long as its line in the file says.
PAYLOAD = """
: > "$FOLDER/$DAG.$NUMBER.begun"
flock --shared "$FOLDER/$DAG.go" true
sleep "$(sed -n "${NUMBER}p" "$FOLDER/$DAG.go")"
date +%s.%N > "$FOLDER/$DAG.$NUMBER.ended"
"""
COMMAND = ["sh", "-c", PAYLOAD]


def environments(dag):
    return [{"FOLDER": FOLDER, "DAG": dag, "NUMBER": str(number)} for number in range(1, JOBS + 1)]


with DAG("by_dispatch", schedule=None, max_active_tasks=JOBS + 1):
    MeterOperator(task_id="meter", folder=FOLDER)
    DispatchOperator.partial(task_id="job", command=COMMAND, scheduler="room", log_lines=0).expand(
        environment=environments("by_dispatch")
    )

with DAG("the_usual_way", schedule=None, max_active_tasks=JOBS + 1):
    MeterOperator(task_id="meter", folder=FOLDER)
    UsualOperator.partial(task_id="job", command=COMMAND, spool=f"{FOLDER}/usual", slots=JOBS).expand(
        environment=environments("the_usual_way")
    )
