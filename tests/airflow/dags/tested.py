"""A DAG that is run by `dag.test()`, in one program: one task defers, one waits where it is, one is a function."""

import sys

from airflow.sdk import DAG, task

from airflow_provider.operator import DispatchOperator

with DAG("tested", schedule=None) as dag:
    deferred = DispatchOperator(task_id="deferred", command=["bash", "-c", "echo from the deferred"])
    waits = DispatchOperator(task_id="waits", command=["bash", "-c", "echo from the other"], deferrable=False)

    @task.dispatch(python=sys.executable, wait_for="outcome")
    def function(earlier: dict, text: str) -> None:
        print(f"after {earlier['outcome']}: {text}")

    deferred >> waits >> function(deferred.output, "{{ dag.dag_id }}")

if __name__ == "__main__":
    run = dag.test()
    print("the run has", run.state)
