"""A maintenance DAG: every five minutes, what Airflow forgot to tell dispatch is found, and what nobody supervises.

It cancels the jobs of tasks that have ended without a word to their triggerer, and takes on what is left of others for
a few minutes. Copy it into the DAGs folder; one in each Airflow is enough, and more do no harm.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_provider.janitor import DispatchJanitorOperator

with DAG(
    "dispatch_janitor",
    schedule=timedelta(minutes=5),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
) as dag:
    # Jobs of the local scheduler are taken on only with local=True, where this worker and the triggerer share a host.
    DispatchJanitorOperator(task_id="janitor", adopt_seconds=240)
