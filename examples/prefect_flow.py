"""A flow with one long job. Run it again after a crash and it finds the same job; cancel the flow run and the job ends.

Before the first run, once, where the Prefect server runs: `python -m prefect_collection.setup`.
"""

import asyncio

from prefect import flow

from prefect_collection.tasks import dispatch_job


@flow
async def nightly(epochs: int = 3) -> None:
    result = await dispatch_job(
        key="train",
        command=["sh", "-c", 'for epoch in $(seq "$0"); do echo "epoch $epoch"; sleep 1; done', str(epochs)],
        time_limit="2h",
        plan={
            "rules": [
                {"name": "node", "when": {"cause": "node_failure"}, "do": "resubmit", "budget": 3, "delay": "10s"},
                {"name": "out of memory", "when": {"exit_code": 137}, "do": "resubmit", "budget": 1},
            ]
        },
    )
    print(f"job {result.key} has {result.outcome} after {result.runs} run(s)")


if __name__ == "__main__":
    asyncio.run(nightly())
