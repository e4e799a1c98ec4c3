"""Two long jobs on a Slurm cluster under Airflow, each reached in its own way.

`train` runs on the cluster that the clusters file of the workers and triggerers calls `alps`, as in clusters.yaml;
`simulate` where the Airflow connection `alps_login`, of the type `slurm_ssh`, leads. Each appends a line to a file in
`folder`, which the nodes have to see, when a run of it starts and when it ends. If a node fails, or the cluster takes
it back, the plan launches the job again.
"""

from airflow.sdk import DAG

from airflow_provider.operator import DispatchOperator

PAYLOAD = """
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> "$LINES"
sleep 2
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN end" >> "$LINES"
"""

PLAN = {"rules": [{"name": "node", "when": {"cause": ["node_failure", "preempted"]}, "do": "resubmit", "budget": 3}]}

with DAG("slurm_example", schedule=None, params={"folder": "/scratch/ann"}):
    DispatchOperator(
        task_id="train",
        scheduler="alps",
        spec={"command": ["sh", "-c", PAYLOAD], "memory": "500MiB", "time_limit": "2h"},
        environment={"LINES": "{{ params.folder }}/train.lines"},
        plan=PLAN,
    )
    DispatchOperator(
        task_id="simulate",
        scheduler_conn_id="alps_login",
        command=["sh", "-c", PAYLOAD],
        time_limit="30m",
        environment={"LINES": "{{ params.folder }}/simulate.lines"},
        plan=PLAN,
    )
