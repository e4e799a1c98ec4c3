"""A flow with one long job, served to a Prefect server: it is run when the server is asked to.

The job appends a line to the file that LINES names when a run of it starts and when it ends. If the host of a run
fails, the plan launches it again, at most twice.
"""

import os

from prefect import flow

from prefect_collection.results import JobResult
from prefect_collection.tasks import dispatch_job

PAYLOAD = """
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN start" >> "$LINES"
sleep "$SECONDS_TO_RUN"
echo "$DISPATCH_SUBMISSION $DISPATCH_RUN end" >> "$LINES"
"""


@flow(name="dispatch-example")
async def dispatch_example(seconds: int = 20) -> JobResult:
    return await dispatch_job(
        key="train",
        command=["bash", "-c", PAYLOAD],
        environment={
            "LINES": os.environ.get("LINES", "/tmp/dispatch-example-lines"),  # noqa: S108 - an example
            "SECONDS_TO_RUN": str(seconds),
        },
        time_limit="10m",
        plan={"rules": [{"name": "node", "when": {"cause": "node_failure"}, "do": "resubmit", "budget": 2}]},
    )


if __name__ == "__main__":
    dispatch_example.serve(name="demo", pause_on_shutdown=False)
